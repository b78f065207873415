"""Drafters that score a whole block of future tokens, and how they are recognised without an import of their networks."""

from __future__ import annotations

from typing import Any, Final

MASKED_BLOCK: Final = "masked_block"
"""The model type of masked-block drafters."""


def is_masked_block(model: Any) -> bool:
    """Whether a model is a masked-block drafter."""
    return getattr(getattr(model, "config", None), "model_type", None) == MASKED_BLOCK
