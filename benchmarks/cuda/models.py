"""The models that are measured: the bundled pair, and its target inflated on the device itself."""

from __future__ import annotations

import copy
import gc
from typing import Any, Final

import torch

from draftwood.api import Pair, load
from draftwood.core.settings import DTypeName, LoadOptions
from draftwood.loading.models import quiet_loading

_PER_LAYER: Final = 250_000
"""Parameters over the cube of the layers, about those of Llama 3 with 1 B and 8 B."""
_STEP: Final = 32
"""Feed-forward widths are multiples of it."""


def bundled(device: str, dtype: DTypeName) -> Pair:
    """The bundled pair, run by PyTorch."""
    quiet_loading()
    return load(options=LoadOptions(device=device, dtype=dtype, backend="torch", profile="none"))


def shaped(device: str, parameters: int | None) -> Pair:
    """The bundled pair in bfloat16 on an accelerator, its target inflated to so many parameters."""
    pair = bundled(device, "bfloat16" if device != "cpu" else "float32")
    if parameters is None or pair.draft is None:
        return pair
    return Pair(inflated(pair.model, parameters), pair.draft_model, pair.tokenizer)


def inflated(model: Any, parameters: int) -> Any:
    """A Llama model with the scores of this one at the cost of so many parameters.

    New layers and feed-forward units have random weights, but zeros where they would write to the residual stream (after
    Net2Net, Chen et al. 2016, arXiv 1511.05641). So they change no score, and drafts are as often right as before.
    """
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = max(config.num_hidden_layers, round((parameters / _PER_LAYER) ** (1 / 3)))
    with torch.device("meta"):
        left = parameters - sum(weight.numel() for weight in type(model)(config).parameters())
    unit = 3 * config.hidden_size * config.num_hidden_layers
    config.intermediate_size += max(0, round(left / unit / _STEP)) * _STEP
    with torch.random.fork_rng(devices=[] if model.device.type == "cpu" else [model.device]), torch.no_grad(), model.device:
        torch.manual_seed(0)
        grown, weights = type(model)(config), dict(model.named_parameters())
        for name, new in grown.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                new.zero_()
            if name in weights:
                new[tuple(slice(length) for length in weights[name].shape)] = weights[name]
            new.data = new.data.to(model.dtype)
    grown.generation_config = copy.deepcopy(model.generation_config)
    return grown.eval()


def free(device: str) -> None:
    """Give the memory of models that are gone back to the device."""
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
