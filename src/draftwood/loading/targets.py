"""The target of a causal pair: alone, or divided among processes or devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftwood.core.settings import LoadOptions
from draftwood.loading.causal import load_causal


def load_target(
    name: str | Path, draft: str | Path | None, options: LoadOptions, device: torch.device, dtype: torch.dtype
) -> Any:
    """As :func:`draftwood.loading.causal.load_causal`, or divided; the draft may read what the target computes."""
    if options.tensor_parallel:
        from draftwood.loading.shared import load_shared  # here and below: it imports transformers

        return load_shared(name, draft, options)
    if options.device_map is not None:
        from draftwood.loading.spread import load_spread

        return load_spread(name, draft, options, dtype)
    return load_causal(name, options, device, dtype)
