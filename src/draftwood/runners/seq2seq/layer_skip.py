"""The target with some layers skipped as its own draft model: no training, and no memory except keys and values.

Source: self-speculative decoding, Zhang et al. 2024 (arXiv 2309.08168).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from draftwood.core.errors import ConfigError
from draftwood.runners.seq2seq.module_copy import name_of, shallow_copy, with_parts
from draftwood.runners.seq2seq.patched_decoder import layer_list

_COUNTS = ("decoder_layers", "num_decoder_layers")
_ALL = "num_hidden_layers"


def decoder_layer_count(model: Any) -> int:
    """Number of layers of the decoder, or of a causal model; raises a ModelError if it has no list of layers."""
    return len(layer_list(_stack(model)))


def with_layers(model: Any, layers: Sequence[int]) -> Any:
    """A model that shares all weights with ``model`` and has only these layers of its decoder.

    Args:
        model: a causal or encoder-decoder language model of ``transformers``, which is not changed.
        layers: numbers of layers, from 0, ascending.

    Raises:
        ConfigError: no layers, layers that the model does not have, or a missing layer that others need.
        ModelError: the model has no list of layers.
    """
    stack = _stack(model)
    whole = layer_list(stack)
    kept = list(layers)
    if not kept or kept != sorted(set(kept)) or not 0 <= kept[0] <= kept[-1] < len(whole):
        raise ConfigError(
            f"layers {kept} of a decoder with layers 0 to {len(whole) - 1}: give at least one of these, each once, ascending"
        )
    sharing = [any(getattr(part, "has_relative_attention_bias", False) for part in layer.modules()) for layer in whole]
    if any(sharing) and not sharing[kept[0]]:
        raise ConfigError(
            f"layers {kept} of {model.config.model_type!r} leave out layer {sharing.index(True)}, which makes the position "
            "biases of all others: keep it"
        )
    chosen = nn.ModuleList([_renumbered(whole[layer], index) for index, layer in enumerate(kept)])
    out = with_parts(model, {name_of(whole, model): chosen.train(stack.training)})
    _set_configs(out, name_of(whole, model), kept, len(whole))
    return out


def _stack(model: Any) -> Any:
    return model.get_decoder() if model.config.is_encoder_decoder else model.base_model


def _renumbered(layer: nn.Module, index: int) -> nn.Module:
    """A copy of a layer and all its parts, with its new index in a key-value cache."""
    out: nn.Module = shallow_copy(layer)
    for name, part in layer._modules.items():
        if part is not None:
            out._modules[name] = _renumbered(part, index)
    if hasattr(out, "layer_idx"):
        out.layer_idx = index  # type: ignore[assignment]
    return out


def _set_configs(model: Any, path: str, kept: list[int], total: int) -> None:
    """Set the number of layers in the configurations of a copied model and of its copied parts."""
    copies: dict[int, Any] = {}
    part, of_model = model, model.config
    for name in path.split("."):
        if (old := getattr(part, "config", None)) is not None:
            if id(old) not in copies:
                both = old is of_model and old.is_encoder_decoder  # also describes the encoder's layers
                copies[id(old)] = _with_count(copy.deepcopy(old), kept, total, _COUNTS if both else (*_COUNTS, _ALL))
            part.config = copies[id(old)]
        part = part._modules[name]


def _with_count(config: Any, kept: list[int], total: int, counts: Sequence[str]) -> Any:
    text = config if config.is_encoder_decoder else config.get_text_config()
    types = getattr(text, "layer_types", None)
    if types is not None and len(types) == total:
        text.layer_types = [types[layer] for layer in kept]
    for count in counts:
        if hasattr(text, count):
            setattr(text, count, len(kept))
    return config
