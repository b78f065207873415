"""What a masked-block drafter reads: encoded source sentences. Its network is imported only where there is one."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

MASKED_BLOCK: Final = "masked_block"
"""The model type of masked-block drafters."""


def is_masked_block(model: Any) -> bool:
    """Whether a model is a masked-block drafter."""
    return getattr(getattr(model, "config", None), "model_type", None) == MASKED_BLOCK


class Source(NamedTuple):
    """A batch of encoded source sentences.

    Attributes:
        embedded, states: the sentences before and after the encoder.
        mask: False at padding; None without padding.
    """

    embedded: Float[Tensor, "row source width"]
    states: Float[Tensor, "row source width"]
    mask: Bool[Tensor, "row source"] | None
