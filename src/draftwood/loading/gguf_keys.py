"""What the metadata of a GGUF file say of its model, compared with the model that is computed.

A key that is neither compared nor known to leave texts as they are is refused: it could make another model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from draftwood.core.checks import short_repr
from draftwood.core.errors import ModelError
from draftwood.hardware.machine import version_of
from draftwood.loading.checkpoint import first_line
from draftwood.loading.gguf_header import OTHER_FILES, Header
from draftwood.runners.context import rotary_settings
from draftwood.runners.native.layers import head_size
from draftwood.runners.windows import SLIDING

_SETTINGS: Final = {  # of the configuration; the first that it has counts
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads", "num_attention_heads", "n_head"),
    **dict.fromkeys(
        ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
        ("rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    ),
    "attention.sliding_window": ("sliding_window",),
    "attention.sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "attention.scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_used_count": ("num_experts_per_tok", "top_k_experts"),
    "expert_weights_norm": ("norm_topk_prob",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logits_scaling",),
    "residual_scale": ("residual_multiplier",),
    "use_parallel_residual": ("use_parallel_residual",),
}
_UNUSED: Final = {  # the tensors show these sizes, or texts do not depend on them
    "block_count", "context_length", "embedding_length", "feed_forward_length", "pooling_type",
    "vocab_size",
}  # fmt: skip
_NEUTRAL: Final[Mapping[str, Any]] = {  # values with which a key does nothing
    "attention.causal": True, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0, "attention.scale": 0,
    "attention.sliding_window": 0, "embedding_scale": 1, "expert_count": 0, "expert_shared_count": 0,
    "expert_gating_func": 1, "expert_used_count": 0, "expert_weights_scale": 1, "leading_dense_block_count": 0,
    "logit_scale": 1, "nextn_predict_layers": 0,
    "residual_scale": 1, "rope.scaling.attn_factor": 1, "rope.scaling.yarn_attn_factor": 1,
    "rope.scaling.yarn_ext_factor": 1, "tensor_data_layout": "Meta AI original pth",
    "use_parallel_residual": False,
}  # fmt: skip
OWN_SCALE: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose attention llama.cpp scales by the width for each head, which no key says."""
_ROTARY: Final = {
    "attention.temperature_scale": "llama_4_scaling_beta", "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    "attention.temperature_length": "original_max_position_embeddings", "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow",
}  # fmt: skip
_TYPE, _FACTOR, _OLD_FACTOR = "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"
_ORIGINAL: Final = "rope.scaling.original_context_length"


def values_of(header: Header) -> dict[str, Any]:
    """What a file says under the name of its architecture, without that name; a list of equal values is that value."""
    own, found = f"{header.architecture}.", dict[str, Any]()
    for key in (*header.metadata, *header.arrays):
        if key.startswith(own):
            value: Any = header.value(key)
            equal = isinstance(value, list) and value and value.count(value[0]) == len(value)
            found[key.removeprefix(own)] = value[0] if equal else value
    return found


def rotary_scaling(values: Mapping[str, Any]) -> tuple[str, float]:
    """The type and the factor of a file's rotary scaling, as llama.cpp reads them: linear where it names no type, and a
    factor of 0 is none."""
    kind = values.get(_TYPE, "linear")
    factor = values.get(_FACTOR, values.get(_OLD_FACTOR, 0)) or 1.0
    return ("default", 1.0) if kind == "none" or (kind == "linear" and factor == 1) else (kind, factor)


def refuse_unread(header: Header, config: Any, read: Collection[str] = ()) -> None:
    """Raise a ModelError for a key under the architecture's name that could make another model than ``config`` says, which
    was made of those that were ``read``."""
    values = values_of(header)
    for name, said in values.items():
        if name in read:
            continue
        has = _has(name, values, config)
        idle = [_NEUTRAL[name]] if name in _NEUTRAL else []
        if name not in _UNUSED and not any(_equal(said, value) for value in (*has, *idle)):
            raise unread(header, name, said, next(iter(has), None))
    own = values.get("block_count") == OWN_SCALE.get(header.architecture, 0)
    if own and getattr(config, "query_pre_attn_scalar", None) != config.hidden_size // config.num_attention_heads:
        raise unread(header, "block_count", values["block_count"])


def require(header: Header, values: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise a ModelError if the values of a file, by :func:`values_of`, lack one of these names."""
    if lacks := [name for name in names if name not in values]:
        raise ModelError(f"{header} does not say {header.architecture}.{lacks[0]}: {OTHER_FILES}")


def unread(header: Header, name: str, said: Any, wanted: Any = None) -> ModelError:
    """The error for a key; ``wanted`` is the value that is computed, if there is one."""
    which = "which is not read" if wanted is None else f"but {short_repr(wanted)} is computed"
    return ModelError(
        f"{header} says {header.architecture}.{name} {short_repr(said)}, {which} for architecture "
        f"{header.architecture!r}, and its texts would be another model's: {OTHER_FILES}"
    )


def _has(name: str, values: Mapping[str, Any], config: Any) -> list[Any]:
    """What the configuration has for a key: one value, or one for each type of layers; none if it has nothing."""
    parts, scaling = rotary_settings(config), rotary_scaling(values)
    if name in (_TYPE, _FACTOR, _OLD_FACTOR):
        same = [part for part in parts if (part.get("rope_type", "default"), part.get("factor", 1.0)) == scaling]
        return [values[name]] * len(same)
    if name == _ORIGINAL:
        used = scaling[0] not in ("default", "linear")
        return [part.get("original_max_position_embeddings") for part in parts] if used else [values[name]]
    if name == "attention.sliding_window_pattern" and (kinds := getattr(config, "layer_types", None)):
        slides, said = [kind == SLIDING for kind in kinds], values[name]
        period = isinstance(said, int) and said and [number % said != 0 for number in range(1, len(slides) + 1)] == slides
        return [said] if period else [slides[0] if isinstance(said, bool) and len(set(slides)) == 1 else slides]
    if name in ("rope.freq_base", "rope.freq_base_swa"):
        return [part["rope_theta"] for part in parts if "rope_theta" in part]
    if name == "rope.scaling.finetuned":  # of Granite it says whether heads are rotated
        granite = config.model_type.startswith("granite")
        return [getattr(config, "position_embedding_type", "rope") == "rope" if granite else values[name]]
    if name in _ROTARY:
        return [part[_ROTARY[name]] for part in parts if _ROTARY[name] in part]
    if name == "rope.dimension_count":
        whole = getattr(config, "partial_rotary_factor", None) or 1.0
        return [int(head_size(config) * part.get("partial_rotary_factor", whole)) for part in parts]
    if name in ("attention.key_length", "attention.value_length"):
        return [getattr(config, "global_head_dim", None) or head_size(config)]
    found = [value for setting in _SETTINGS.get(name, ()) if (value := getattr(config, setting, None)) is not None]
    if name == "attention.sliding_window" and values[name] >= getattr(config, "max_position_embeddings", math.inf):
        return [values[name]]
    return found[:1]


def _equal(said: Any, has: Any) -> bool:
    if isinstance(said, float) and isinstance(has, int | float):
        return math.isclose(said, has, rel_tol=1e-5)
    return bool(said == has)


def cannot_read(what: str, header: Header, error: Exception) -> str:
    """A message for an error of ``transformers``; ``what`` is the part of a file that was being read."""
    return (
        f"the {what} in {header}, architecture {header.architecture!r}, cannot be read by transformers "
        f"{version_of('transformers')} ({first_line(error).rstrip('.')}): {OTHER_FILES}"
    )


def refuse_part(header: Header) -> None:
    """Raise a ModelError for a part of a split model without the others."""
    if int(parts := header.metadata.get("split.count", 1)) != len(header.parts) + 1 and parts:
        raise ModelError(
            f"{header} is one of {parts} parts of a model: join them with 'llama-gguf-split --merge', and give the result"
        )
