"""Why the native engine does not run a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from itertools import product
from typing import Any, Final

import torch

from draftwood.core.errors import ModelError
from draftwood.runners.context import rotary_settings, unknown_sizes
from draftwood.runners.native.facts import expert_count, expert_settings, is_sparse, shapes_of
from draftwood.runners.native.families import ACTIVATIONS, FAMILIES, LAYERS, family_named
from draftwood.runners.native.family import EMBEDDING, HEAD, Family
from draftwood.runners.native.layers import borrowers, input_size, kinds_of
from draftwood.runners.support import attention_problem, model_kind

_ROTARY: Final = {"default", "linear", "llama3", "yarn", "longrope"}
"""Rotations that depend on the position alone, within the context of :func:`draftwood.runners.context.context`."""
_ROTARY_NUMBERS: Final = {
    "rope_theta": (1, math.inf), "factor": (0, math.inf), "partial_rotary_factor": (0, 1),
    "original_max_position_embeddings": (0, math.inf),
}  # fmt: skip
"""Settings of a rotary embedding: a bound that they exceed, and their maximum."""
_BY_LAYER: Final = {"default", "proportional"}
"""The same where heads of layers have several sizes."""
_ONLY: Final = {
    "conv_bias": False, "use_expert_bias": True, "routed_scaling_factor": 1.0,
    "mamba_conv_bias": True, "mamba_proj_bias": False, "time_step_limit": (0.0, math.inf),
}  # fmt: skip
"""Settings of mixtures and of layers with a running state, with the only values that the engine has code for."""
_MOST: Final = 1 << 24
_SIZES: Final = {
    **dict.fromkeys(("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings"), _MOST),
    **dict.fromkeys(("block_multiple_of", "decoder_sparse_step"), _MOST), "num_hidden_layers": 1 << 12,
}  # fmt: skip
"""Settings that are 1 or more where a model has them, and what they stay below."""


def why_not_config(config: Any, name: str | None = None) -> str | None:
    """Why the native engine has no code for a model of this configuration; None if it has.

    Args:
        name: of its class; by default what the configuration says.
    """
    kind = getattr(config, "model_type", "")
    own, name = FAMILIES.get(kind), name or (getattr(config, "architectures", None) or [None])[0]
    if own is None or name not in (None, own.name):
        return f"it has no code for model type {kind!r}"
    if (reason := why_not_sizes(config, own)) is not None:
        return reason
    for rotary in rotary_settings(config):
        if (form := rotary.get("rope_type", "default")) not in (_BY_LAYER if own.varied else _ROTARY):
            return f"it has no code for rotary embeddings of type {form!r}"
        if rotary.get("partial_rotary_factor", 1.0) != 1.0 and not (own.partly or form == "proportional"):
            return "it has no code for rotary embeddings of parts of a head"
        if own.tempered and (lacks := {"original_max_position_embeddings", "llama_4_scaling_beta"} - rotary.keys()):
            return f"its rotary embedding does not say {min(lacks)}"
    if own.activation and (activation := getattr(config, own.activation)) not in ACTIVATIONS:
        return f"it has no code for {own.activation} {activation!r}"
    if own.activation and own.states.keys() & set(kinds_of(config)) and ACTIVATIONS[activation]:
        return f"it has no code for {own.activation} {activation!r} in layers with a running state"
    for setting, known in _ONLY.items():
        if (value := getattr(config, setting, known)) not in (None, known):
            return f"it has no code for {setting} {value}"
    if len(getattr(config, "no_rope_layers", None) or range(config.num_hidden_layers)) != config.num_hidden_layers:
        return "its no_rope_layers are more or fewer than its layers"
    if own.shared and not own.ungated and not all(is_sparse(config, number) for number in range(config.num_hidden_layers)):
        return "it has no code for dense layers among mixtures with an expert of all tokens"
    if (codes := getattr(config, "quantization_config", None)) is not None and not (own.alternating and is_mxfp4(codes)):
        return "it has no code for quantized checkpoints"
    if (sees := getattr(config, "use_bidirectional_attention", None)) and not (own.varied and sees == "vision"):
        return "its tokens see later ones"
    if own.varied and (reason := _why_not_layers(config)) is not None:
        return reason
    strange = [*({name for name in LAYERS if getattr(config, name, None)} - set(own.windows)), *unknown_sizes(config)]
    return f"it has no code for {strange[0]} of model type {kind!r}" if strange else attention_problem(config, own.states)


def why_not_sizes(config: Any, own: Family) -> str | None:
    """The same of settings that are out of range. What a model need not have may be None, or 0 if it is a size."""
    states = {setting for layer in own.states.values() for setting in layer.facts.values()}
    experts = [setting for setting in expert_settings(own).values() if isinstance(setting, str)]
    present = {*_SIZES, *(() if own.varied else ("num_key_value_heads", "head_dim"))}
    for setting in (*present, *states, *experts, own.shared or "intermediate_size"):
        value = getattr(config, setting, None)
        if value is not None and not (isinstance(value, int) and (setting in present) <= value < _SIZES.get(setting, _MOST)):
            return f"its {setting} is {value!r}"
    groups = {layer.facts.get("value_heads", ""): layer.facts.get("key_heads", "") for layer in own.states.values()}
    if not own.varied:
        groups["num_attention_heads"] = "num_key_value_heads"
    for heads, shared in groups.items():
        if (count := getattr(config, heads, None)) and (parts := getattr(config, shared, None)) and count % parts:
            return f"its {heads} is {count}, which is no multiple of its {shared}, {parts}"
    numbers = [(setting, rotary.get(setting)) for rotary, setting in product(rotary_settings(config), _ROTARY_NUMBERS)]
    numbers += [(setting, getattr(config, setting, None)) for setting in (own.scale[0], own.epsilon, *own.factors.values())]
    for setting, value in numbers:
        above, top = _ROTARY_NUMBERS.get(setting, (0, math.inf))
        if value is not None and not (isinstance(value, int | float) and above < value <= top):
            return f"its {setting} is {value!r}"
    needed = (own.epsilon, own.scale[0], *(experts if own.experts and expert_count(config) else ()))
    lacks = [setting for setting in needed if setting and getattr(config, setting, None) is None]
    return f"its {lacks[0]} is None" if lacks else None


def _why_not_layers(config: Any) -> str | None:
    """The same of layers that are unlike."""
    kinds, last = kinds_of(config), borrowers(config)
    if lacks := sorted(set(kinds[last.start :]) - set(kinds[: last.start])):
        return f"its last layers of type {lacks[0]} read keys and values of an earlier one, and there is none"
    if input_size(config) and config.vocab_size_per_layer_input < config.vocab_size:
        return f"it reads {config.vocab_size} tokens, and layers have inputs of {config.vocab_size_per_layer_input}"
    return None


def is_mxfp4(codes: Any) -> bool:
    """Whether the matrices of experts are codes of this type, by the ``quantization_config`` of a checkpoint."""
    return isinstance(codes, Mapping) and codes.get("quant_method") == "mxfp4"


def why_not(model: Any) -> str | None:
    """Why the native engine does not run a live causal model; None if it does."""
    if not type(model).__module__.startswith("transformers."):
        return f"it has no code for model type {model_kind(model)!r}"
    if (reason := why_not_config(model.config, type(model).__name__) or why_not_format(model)) is not None:
        return reason
    weights = model.state_dict()
    embedded, scored = len(weights[EMBEDDING]), len(weights[HEAD])
    if scored > embedded:
        return f"it scores {scored} tokens and has embeddings of {embedded}"
    others = weights.keys() ^ shapes_of(model.config).keys()
    return f"it has no code for the weight {min(others)!r}" if others else None


def why_not_files(model_type: str | None, dtype: torch.dtype | None) -> str | None:
    """Why the native engine runs no causal model of this type and number format; None if it may, or they are not known."""
    if model_type is not None and family_named(model_type) is None:
        return f"it has no code for model type {model_type!r}"
    return None if dtype is None else _why_not_formats({dtype})


def why_not_format(model: Any) -> str | None:
    """Why the native engine does not run models of this number format on this device; None if it does."""
    if model.device.type != "cpu":
        return f"the model is on {model.device}"
    return _why_not_formats({p.dtype for p in model.parameters()})


def _why_not_formats(formats: Set[torch.dtype]) -> str | None:
    if len(formats) > 1 or not formats <= {torch.float32, torch.bfloat16}:
        found = ", ".join(sorted(str(one).removeprefix("torch.") for one in formats))
        return f"it computes in float32 or bfloat16, and the model is in {found}"
    return None


def refuse(reason: str | None) -> None:
    """Raise a ModelError if there is a reason not to run a model."""
    if reason is not None:
        raise ModelError(f"the native engine does not run this model: {reason}. Use --backend torch")
