"""What GGUF files of a model type say in their own way, as a configuration has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from draftwood.loading.gguf_header import Header
from draftwood.loading.gguf_keys import OWN_SCALE, require, rotary_scaling, unread
from draftwood.loading.gguf_layers import (
    EXPERTS,
    GEMMA4_NEEDED,
    GEMMA4_READ,
    INNER,
    PATTERN,
    SHARED,
    TURNED_SIZE,
    WINDOW,
    gemma4,
    layer_kinds,
    numbers_of,
)
from draftwood.runners.native.families import FAMILIES, SWIGLU
from draftwood.runners.native.states import TILED
from draftwood.runners.windows import FULL, SLIDING

LONG: Final = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}  # of Phi-3
_INTERVAL, _RECURRENT = "full_attention_interval", "attention.recurrent_layers"
_ROTATES: Final = "rope.scaling.finetuned"  # as Granite's files mean it
_SECTIONS, _AHEAD = "rope.dimension_sections", "nextn_predict_layers"


def _gemma2(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    layers, heads, second = config["num_hidden_layers"], config["num_attention_heads"], header.architecture == "gemma2"
    wide = layers == OWN_SCALE[header.architecture]  # the largest one
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config["hidden_size"] // heads if wide else config["head_dim"],
        "sliding_window": int(values.get(WINDOW, 4096)),
        "layer_types": layer_kinds(values, layers, 2 if second else 6),
        "final_logit_softcapping": values.get("final_logit_softcapping", 30.0 if second else None),
        "attn_logit_softcapping": values.get("attn_logit_softcapping", 50.0 if second else None),
    }


def _gemma3(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    near = {"rope_type": "default", "rope_theta": float(values.get("rope.freq_base_swa", 10000.0))}
    rotary = {FULL: config["rope_parameters"], SLIDING: near}
    return {**_gemma2(header, values, config), "rope_parameters": rotary}


def _partly(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a rotary embedding of a part of each head."""
    size = config["head_dim"]
    return {**config["rope_parameters"], "partial_rotary_factor": values.get(TURNED_SIZE, size) / size}


def _phi3(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {tensor.name: tensor for tensor in header.tensors}
    rotary = _partly(values, config)
    if LONG["short_factor"] in tensors:
        original = int(values.get("rope.scaling.original_context_length", config["max_position_embeddings"]))
        rotary |= {"rope_type": "longrope", "original_max_position_embeddings": original}
        rotary |= {name: numbers_of(header, tensors[held]).tolist() for name, held in LONG.items()}
        rotary["attention_factor"] = float(values.get("rope.scaling.attn_factor", 1.0))
    return {"rope_parameters": rotary, "sliding_window": values.get(WINDOW) or None}


def _smollm3(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    layers = range(1, config["num_hidden_layers"] + 1)
    return {"no_rope_layers": [int(number % 4 != 0) for number in layers], "layer_types": None, "sliding_window": None}


def _exaone4(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    window = values.get(WINDOW) or None
    kinds = layer_kinds(values if window else {PATTERN: False}, config["num_hidden_layers"], 4)
    return {"sliding_window": window, "sliding_window_pattern": 4 if window else 0, "layer_types": kinds}


def _all_rotated(sections: Any, pairs: int) -> bool:
    """Whether each pair of numbers is in one of three interleaved sections: in a text all three have the same positions."""
    if not isinstance(sections, list) or len(sections) < 3 or min(sections) < 0:
        return isinstance(sections, int) and sections > 0
    return all(one < 3 * sections[one % 3] for one in (pair % sum(sections) for pair in range(pairs)))


def _sizes_of_state(header: Header, values: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """Taps of the convolution, numbers of a key, heads of keys and of values, and numbers of a value; raises a ModelError if
    they do not fit together."""
    taps, size, keys, heads, inner = (int(values[name]) for name in _RULE)
    for name, fits in (("inner_size", heads > 0 and inner % heads == 0), ("state_size", size > 0)):
        if not fits:
            raise unread(header, f"ssm.{name}", values[f"ssm.{name}"])
    if keys < 1 or heads % keys:
        raise unread(header, "ssm.group_count", keys)
    return taps, size, keys, heads, inner // heads


def _qwen35(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    taps, size, keys, heads, value_size = _sizes_of_state(header, values)
    layers, rotary = config["num_hidden_layers"] - int(values.get(_AHEAD, 0)), _partly(values, config)
    period, said = int(values.get(_INTERVAL, 4)), values.get(_RECURRENT)
    recurrent = said if isinstance(said, list) else [said] * layers
    if said is None:
        recurrent = [number % period != 0 for number in range(1, layers + 1)] if period > 0 else []
    if len(recurrent) < layers:
        name = _INTERVAL if said is None else _RECURRENT
        raise unread(header, name, values[name])
    if _SECTIONS in values and not _all_rotated(values[_SECTIONS], values.get(TURNED_SIZE, config["head_dim"]) // 2):
        raise unread(header, _SECTIONS, values[_SECTIONS])
    return {
        "num_hidden_layers": layers, "layer_types": ["linear_attention" if one else FULL for one in recurrent[:layers]],
        "linear_conv_kernel_dim": taps, "linear_key_head_dim": size, "linear_num_key_heads": keys,
        "linear_num_value_heads": heads, "linear_value_head_dim": value_size, "rope_parameters": rotary,
    }  # fmt: skip


def _attending(header: Header, values: Mapping[str, Any], config: Mapping[str, Any], other: str) -> list[str]:
    """The types of layers: those without heads of keys and values are of another type."""
    layers, shared = config["num_hidden_layers"], values.get(SHARED, config["num_key_value_heads"])
    each = shared if isinstance(shared, list) else [shared] * layers
    if len(each) != layers or set(each) - {0, config["num_key_value_heads"]}:
        raise unread(header, SHARED, shared)
    return [FULL if one else other for one in each]


def _lfm2(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {"layer_types": _attending(header, values, config, "conv")}


def _lfm2_moe(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    if (how := values[_GATING]) != _SIGMOID:
        raise unread(header, _GATING, how, _SIGMOID)
    return {**_lfm2(header, values, config), "num_dense_layers": int(values.get(_DENSE, 0))}


def _granite_moe(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    counts = EXPERTS[:2]
    count, used = (int(values.get(name, 0)) for name in counts)
    require(header, values, (INNER, *((*counts, _SHARED_EXPERT) if count or header.architecture == "granitemoe" else ())))
    return {
        "num_local_experts": count, "num_experts_per_tok": used,
        "shared_intermediate_size": int(values[_SHARED_EXPERT if count else INNER]),
        "layer_types": _attending(header, values, config, "mamba"),
        "position_embedding_type": "rope" if values.get(_ROTATES, True) else None, **_mamba(header, values, config),
    }  # fmt: skip


def _mamba(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of Mamba-2; none if no layer has it."""
    if header.architecture != "granitehybrid":
        return {}
    require(header, values, _RULE)
    taps, size, groups, heads, value_size = _sizes_of_state(header, values)
    if heads * value_size % config["hidden_size"]:
        raise unread(header, "ssm.inner_size", heads * value_size)
    return {
        "mamba_d_conv": taps, "mamba_d_state": size, "mamba_n_groups": groups, "mamba_n_heads": heads,
        "mamba_d_head": value_size, "mamba_expand": heads * value_size // config["hidden_size"],
    }  # fmt: skip


def _yarn(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the rotary embedding, of YaRN if the file says that."""
    kind, factor = rotary_scaling(values)
    if kind != "yarn":
        return dict(config["rope_parameters"])
    original = int(values.get("rope.scaling.original_context_length", config["max_position_embeddings"]))
    betas = {name: float(values.get(f"rope.scaling.yarn_{name}", beta)) for name, beta in _BETAS.items()}
    scaling = {"rope_type": kind, "factor": float(factor), "original_max_position_embeddings": original}
    return {**config["rope_parameters"], **scaling, **betas}


def _ministral3(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    rotary = {"original_max_position_embeddings": config["max_position_embeddings"], **_yarn(values, config)}
    if rotary["rope_type"] == "yarn":
        require(header, values, ["rope.scaling.yarn_log_multiplier"])
    rotary |= {"llama_4_scaling_beta": float(values.get("attention.temperature_scale", 0.0)), "mscale": 1.0}
    return {"rope_parameters": {**rotary, "mscale_all_dim": 1.0}, "sliding_window": values.get(WINDOW) or None}


def _gpt_oss(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    # As the model was trained: llama.cpp rounds the ends of the ramp to whole numbers.
    kinds = layer_kinds(values, config["num_hidden_layers"], 2)
    return {"layer_types": kinds, "rope_parameters": {**_yarn(values, config), "truncate": False}}


class Said(NamedTuple):
    """What files of a model type say in their own way, or leave to the program that reads them.

    Attributes:
        settings: of the configuration, by the key that says them, which a file must have.
        fixed: settings that no key says.
        needed: further keys that a file must have.
        read: keys that a configuration is made of, whatever they say.
        more: makes settings of several keys, for a configuration without these.
    """

    settings: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}
    needed: tuple[str, ...] = (INNER,)
    read: tuple[str, ...] = ()
    more: Callable[[Header, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda *_: {}


_BETAS: Final = {"beta_slow": 1.0, "beta_fast": 32.0}
_RULE: Final = ("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size")
_SHARED_EXPERT: Final = "expert_shared_feed_forward_length"
_DENSE, _GATING, _SIGMOID = "leading_dense_block_count", "expert_gating_func", 2
_GRANITE: Final = {
    "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale",
}  # fmt: skip
_LOCAL: Final = dict(zip(("num_local_experts", "num_experts_per_tok"), EXPERTS[:2], strict=True))
_SPARSE: Final = dict(zip(("num_experts", "num_experts_per_tok", "moe_intermediate_size"), EXPERTS, strict=True))
_EVERY: Final = {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}  # layer is a mixture
_QWEN35: Final = Said(
    fixed={TILED: True}, needed=(*_RULE, INNER), read=(*_RULE, _INTERVAL, _RECURRENT, _SECTIONS, _AHEAD), more=_qwen35
)
_QWEN35_MOE: Final = _QWEN35._replace(
    settings={**_SPARSE, "shared_expert_intermediate_size": _SHARED_EXPERT}, fixed={**_EVERY, TILED: True}, needed=_RULE
)
_LFM2: Final = Said(
    {"conv_L_cache": "shortconv.l_cache"}, {"conv_bias": False, "block_auto_adjust_ff_dim": False},
    read=("shortconv.l_cache", SHARED), more=_lfm2,
)  # fmt: skip
SAID: Final = {
    **dict.fromkeys(FAMILIES, Said()),
    "gemma2": Said(more=_gemma2), "gemma3_text": Said(more=_gemma3), "phi3": Said(more=_phi3),
    "smollm3": Said(more=_smollm3), "exaone4": Said(more=_exaone4), "ministral3": Said(more=_ministral3),
    "gemma4_text": Said(needed=GEMMA4_NEEDED, read=GEMMA4_READ, more=gemma4),
    "granite": Said(_GRANITE),
    "granitemoehybrid": Said(_GRANITE, needed=(), read=(*_RULE, SHARED, _SHARED_EXPERT), more=_granite_moe),
    "mixtral": Said(_LOCAL, {"sliding_window": None}),
    "qwen3_moe": Said(_SPARSE, _EVERY, ()),
    "qwen3_5_text": _QWEN35, "qwen3_5_moe_text": _QWEN35_MOE,
    "qwen3_next": _QWEN35_MOE._replace(fixed={**_EVERY, TILED: False}),
    "gpt_oss": Said({**_LOCAL, "intermediate_size": EXPERTS[2], "sliding_window": WINDOW}, SWIGLU, (), more=_gpt_oss),
    "lfm2": _LFM2,
    "lfm2_moe": Said(
        {**_LFM2.settings, **_SPARSE}, {**_LFM2.fixed, **_EVERY, "use_expert_bias": True, "routed_scaling_factor": 1.0},
        (_GATING, INNER), (*_LFM2.read, _DENSE, _GATING), _lfm2_moe,
    ),
}  # fmt: skip
"""By model type."""
