"""The models that are measured: the bundled pair, and its target inflated on the device itself."""

from __future__ import annotations

import gc

import torch

from benchmarks.inflate import inflated, size_for
from draftwood.api import Pair, load
from draftwood.core.settings import DTypeName, LoadOptions
from draftwood.loading.models import quiet_loading


def bundled(device: str, dtype: DTypeName) -> Pair:
    """The bundled pair, run by PyTorch."""
    quiet_loading()
    return load(options=LoadOptions(device=device, dtype=dtype, backend="torch", profile="none"))


def shaped(device: str, parameters: int | None) -> Pair:
    """The bundled pair in bfloat16 on an accelerator, its target inflated to so many parameters."""
    pair = bundled(device, "bfloat16" if device != "cpu" else "float32")
    if parameters is None or pair.draft is None:
        return pair
    target = pair.model
    return Pair(inflated(target, size_for(target.config, parameters), seed=0), pair.draft_model, pair.tokenizer)


def free(device: str) -> None:
    """Give the memory of models that are gone back to the device."""
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
