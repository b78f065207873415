"""What GGUF files of a model type say in their own way, as a configuration has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from draftwood.core.errors import ModelError
from draftwood.loading.gguf_header import AGAIN, OTHER_FILES, Header, TensorInfo
from draftwood.loading.gguf_keys import INNER, ORIGINAL, PATTERN, SHARED, TURNED_SIZE, WINDOW, Keys, numbers_of
from draftwood.runners.native.families import FAMILIES, SWIGLU
from draftwood.runners.native.states import TILED
from draftwood.runners.windows import FULL, SLIDING

ROPE: Final = "rope_freqs.weight"  # divisors of the rotary frequencies, as Llama 3.1 and its successors have them
LONG: Final = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}  # of Phi-3
_WIDE: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose attention llama.cpp scales by the width for each head, which no key says."""
_EXPERTS: Final = ("expert_count", "expert_used_count", "expert_feed_forward_length")
_STILL: Final = 1e20  # radians are divided by at least that: such a number of a head does not turn
_INTERVAL, _RECURRENT = "full_attention_interval", "attention.recurrent_layers"
_ROTATES: Final = "rope.scaling.finetuned"  # as Granite's files mean it
_SECTIONS: Final = "rope.dimension_sections"


def _layer_kinds(keys: Keys, layers: int, period: int) -> list[str]:
    """The types of layers: all but the last of each period slide, all where it is 0, unless the file says which."""
    said = keys.get(PATTERN, period)
    if not isinstance(said, list):
        said = [said if isinstance(said, bool) else said == 0 or number % said != 0 for number in range(1, layers + 1)]
    if len(said) != layers:
        raise keys.refused(PATTERN)
    return [SLIDING if slides else FULL for slides in said]


def _gemma2(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    layers, heads, arch = config["num_hidden_layers"], config["num_attention_heads"], keys.header.architecture
    second = arch == "gemma2"
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config["hidden_size"] // heads if layers == _WIDE[arch] else config["head_dim"],
        "sliding_window": int(keys.get(WINDOW, 4096)),
        "layer_types": _layer_kinds(keys, layers, 2 if second else 6),
        "final_logit_softcapping": keys.get("final_logit_softcapping", 30.0 if second else None),
        "attn_logit_softcapping": keys.get("attn_logit_softcapping", 50.0 if second else None),
    }


def _gemma3(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    near = {"rope_type": "default", "rope_theta": float(keys.get("rope.freq_base_swa", 10000.0))}
    return {**_gemma2(keys, config), "rope_parameters": {FULL: config["rope_parameters"], SLIDING: near}}


def _gemma4(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of Gemma 4: heads of layers of sliding attention have sizes of their own."""
    layers, wide = config["num_hidden_layers"], int(keys.need("attention.key_length"))
    near, inner, window = int(keys.need("attention.key_length_swa")), keys.need(INNER), int(keys.need(WINDOW))
    for name, size in {"attention.value_length_swa": near, TURNED_SIZE: wide, "rope.dimension_count_swa": near}.items():
        keys.same(name, size)
    keys.need(PATTERN)
    kinds = _layer_kinds(keys, layers, 6)
    if kinds[-1] != FULL:
        raise keys.refused(PATTERN)
    heads = _heads_by_kind(keys, keys.get(SHARED, config["num_attention_heads"]), kinds)
    lent, small = int(keys.get("attention.shared_kv_layers", 0)), config["intermediate_size"]
    if (twice := isinstance(inner, list)) and inner != [small] * (layers - lent) + [2 * small] * lent:
        raise keys.refused(INNER)
    tensors = {tensor.name: tensor for tensor in keys.header.tensors}
    count, used, width = (int(keys.get(name, 0)) for name in _EXPERTS)
    sliding = {"rope_type": "default", "rope_theta": float(keys.get("rope.freq_base_swa", 10000.0))}
    full = {"rope_type": "proportional", "partial_rotary_factor": _turned_part(keys.header, tensors, wide)}
    return {
        "hidden_activation": "gelu_pytorch_tanh", "head_dim": near, "global_head_dim": wide, "layer_types": kinds,
        "num_key_value_heads": heads.get(SLIDING, heads[FULL]), "num_global_key_value_heads": heads[FULL],
        "attention_k_eq_v": f"blk.{kinds.index(FULL)}.attn_v.weight" not in tensors,
        "num_kv_shared_layers": lent, "use_double_wide_mlp": twice,
        "hidden_size_per_layer_input": int(keys.need("embedding_length_per_layer_input")),
        "vocab_size_per_layer_input": config["vocab_size"],
        "sliding_window": window, "final_logit_softcapping": keys.get("final_logit_softcapping"),
        "enable_moe_block": count > 0, "num_experts": count, "top_k_experts": used, "moe_intermediate_size": width,
        "rope_parameters": {SLIDING: sliding, FULL: {**config["rope_parameters"], **full}},
    }  # fmt: skip


def _heads_by_kind(keys: Keys, said: Any, kinds: list[str]) -> dict[str, int]:
    """Heads of keys and values of each type of layers."""
    each = said if isinstance(said, list) else [said] * len(kinds)
    heads = {kind: int(count) for kind, count in zip(kinds, each, strict=False)}
    if each != [heads[kind] for kind in kinds]:
        raise keys.refused(SHARED)
    return heads


def _turned_part(header: Header, tensors: Mapping[str, TensorInfo], size: int) -> float:
    """The part of a head that is rotated."""
    if ROPE not in tensors:
        raise ModelError(f"{header} lacks tensor {ROPE!r}: {AGAIN}")
    divisors = numbers_of(header, tensors[ROPE])
    turned = int((divisors == 1).sum())
    if len(divisors) != size // 2 or (divisors[:turned] != 1).any() or (divisors[turned:] < _STILL).any():
        raise ModelError(f"{header} scales its rotary embedding in a way that is not known: {OTHER_FILES}")
    return 2 * turned / size


def _partly(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a rotary embedding of a part of each head."""
    size = config["head_dim"]
    return {**config["rope_parameters"], "partial_rotary_factor": keys.get(TURNED_SIZE, size) / size}


def _phi3(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {tensor.name: tensor for tensor in keys.header.tensors}
    rotary = _partly(keys, config)
    if LONG["short_factor"] in tensors:
        original = int(keys.get(ORIGINAL, config["max_position_embeddings"]))
        rotary |= {"rope_type": "longrope", "original_max_position_embeddings": original}
        rotary |= {name: numbers_of(keys.header, tensors[held]).tolist() for name, held in LONG.items()}
        rotary["attention_factor"] = float(keys.get("rope.scaling.attn_factor", 1.0))
    return {"rope_parameters": rotary, "sliding_window": keys.get(WINDOW) or None}


def _smollm3(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    layers = range(1, config["num_hidden_layers"] + 1)
    return {"no_rope_layers": [int(number % 4 != 0) for number in layers], "layer_types": None, "sliding_window": None}


def _exaone4(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    layers, window = config["num_hidden_layers"], keys.get(WINDOW) or None
    kinds = _layer_kinds(keys, layers, 4) if window else [FULL] * layers
    return {"sliding_window": window, "sliding_window_pattern": 4 if window else 0, "layer_types": kinds}


def _all_rotated(sections: Any, pairs: int) -> bool:
    """Whether each pair of numbers is in one of three interleaved sections: in a text all three have the same positions."""
    if not isinstance(sections, list) or len(sections) < 3 or min(sections) < 0:
        return isinstance(sections, int) and sections > 0
    return all(one < 3 * sections[one % 3] for one in (pair % sum(sections) for pair in range(pairs)))


def _sizes_of_state(keys: Keys) -> tuple[int, int, int, int, int]:
    """Taps of the convolution, numbers of a key, heads of keys and of values, and numbers of a value; raises a ModelError if
    they do not fit together."""
    taps, size, groups, heads, inner = (int(keys.need(f"ssm.{name}")) for name in _RULE)
    for name, fits in (
        ("inner_size", heads > 0 and inner % heads == 0),
        ("state_size", size > 0),
        ("group_count", groups > 0 and heads % groups == 0),
    ):
        if not fits:
            raise keys.refused(f"ssm.{name}")
    return taps, size, groups, heads, inner // heads


def _qwen35(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    taps, size, groups, heads, value_size = _sizes_of_state(keys)
    layers, rotary = config["num_hidden_layers"] - int(keys.get("nextn_predict_layers", 0)), _partly(keys, config)
    period, said = int(keys.get(_INTERVAL, 4)), keys.get(_RECURRENT)
    recurrent = said if isinstance(said, list) else [said] * layers
    if said is None:
        recurrent = [number % period != 0 for number in range(1, layers + 1)] if period > 0 else []
    if len(recurrent) < layers:
        raise keys.refused(_INTERVAL if said is None else _RECURRENT)
    turned = keys.get(TURNED_SIZE, config["head_dim"])
    if _SECTIONS in keys and not _all_rotated(keys.get(_SECTIONS), turned // 2):
        raise keys.refused(_SECTIONS)
    return {
        "num_hidden_layers": layers, "layer_types": ["linear_attention" if one else FULL for one in recurrent[:layers]],
        "linear_conv_kernel_dim": taps, "linear_key_head_dim": size, "linear_num_key_heads": groups,
        "linear_num_value_heads": heads, "linear_value_head_dim": value_size, "rope_parameters": rotary,
    }  # fmt: skip


def _attending(keys: Keys, config: Mapping[str, Any], other: str) -> list[str]:
    """The types of layers: those without heads of keys and values are of another type."""
    layers, shared = config["num_hidden_layers"], keys.get(SHARED, config["num_key_value_heads"])
    each = shared if isinstance(shared, list) else [shared] * layers
    if len(each) != layers or set(each) - {0, config["num_key_value_heads"]}:
        raise keys.refused(SHARED)
    return [FULL if one else other for one in each]


def _lfm2(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"layer_types": _attending(keys, config, "conv")}


def _lfm2_moe(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    keys.need(INNER)
    keys.need("expert_gating_func")
    keys.same("expert_gating_func", 2)  # the sigmoid
    return {**_lfm2(keys, config), "num_dense_layers": int(keys.get("leading_dense_block_count", 0))}


def _granite(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    keys.same(_ROTATES, True)
    return {}


def _granite_moe(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    sparse = bool(keys.get(_EXPERTS[0], 0)) or keys.header.architecture == "granitemoe"
    count, used = (int(keys.need(name) if sparse else keys.get(name, 0)) for name in _EXPERTS[:2])
    return {
        "num_local_experts": count, "num_experts_per_tok": used,
        "shared_intermediate_size": int(keys.need(_SHARED_EXPERT if sparse else INNER)),
        "layer_types": _attending(keys, config, "mamba"),
        "position_embedding_type": "rope" if keys.get(_ROTATES, True) else None, **_mamba(keys, config),
    }  # fmt: skip


def _mamba(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of Mamba-2; none if no layer has it."""
    if keys.header.architecture != "granitehybrid":
        return {}
    taps, size, groups, heads, value_size = _sizes_of_state(keys)
    if heads * value_size % config["hidden_size"]:
        raise keys.refused("ssm.inner_size")
    return {
        "mamba_d_conv": taps, "mamba_d_state": size, "mamba_n_groups": groups, "mamba_n_heads": heads,
        "mamba_d_head": value_size, "mamba_expand": heads * value_size // config["hidden_size"],
    }  # fmt: skip


def _yarn(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the rotary embedding, of YaRN if the file says that."""
    kind, factor = keys.scaling
    if kind != "yarn":
        return dict(config["rope_parameters"])
    original = int(keys.get(ORIGINAL, config["max_position_embeddings"]))
    betas = {name: float(keys.get(f"rope.scaling.yarn_{name}", beta)) for name, beta in _BETAS.items()}
    scaling = {"rope_type": kind, "factor": float(factor), "original_max_position_embeddings": original}
    return {**config["rope_parameters"], **scaling, **betas}


def _ministral3(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    rotary = {"original_max_position_embeddings": config["max_position_embeddings"], **_yarn(keys, config)}
    if rotary["rope_type"] == "yarn":
        keys.need("rope.scaling.yarn_log_multiplier")
    rotary |= {"llama_4_scaling_beta": float(keys.get("attention.temperature_scale", 0.0)), "mscale": 1.0}
    keys.same("rope.scaling.yarn_log_multiplier", 1.0)
    keys.same("attention.temperature_length", rotary["original_max_position_embeddings"])
    return {"rope_parameters": {**rotary, "mscale_all_dim": 1.0}, "sliding_window": keys.get(WINDOW) or None}


def _gpt_oss(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    # As the model was trained: llama.cpp rounds the ends of the ramp to whole numbers.
    kinds = _layer_kinds(keys, config["num_hidden_layers"], 2)
    return {"layer_types": kinds, "rope_parameters": {**_yarn(keys, config), "truncate": False}}


class Said(NamedTuple):
    """What files of a model type say in their own way, or leave to the program that reads them.

    Attributes:
        settings: of the configuration, by the key that says them, which a file must have.
        fixed: settings that no key says.
        more: makes settings of several keys, for a configuration without these.
        lists: keys that may have a value for each layer.
    """

    settings: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}
    more: Callable[[Keys, Mapping[str, Any]], dict[str, Any]] = lambda *_: {}
    lists: tuple[str, ...] = ()


_BETAS: Final = {"beta_slow": 1.0, "beta_fast": 32.0}
_RULE: Final = ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
_SHARED_EXPERT: Final = "expert_shared_feed_forward_length"
_FACTORS: Final = {
    "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale",
}  # fmt: skip
_LOCAL: Final = dict(zip(("num_local_experts", "num_experts_per_tok"), _EXPERTS[:2], strict=True))
_SPARSE: Final = dict(zip(("num_experts", "num_experts_per_tok", "moe_intermediate_size"), _EXPERTS, strict=True))
_EVERY: Final = {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}  # layer is a mixture
_QWEN35: Final = Said(fixed={TILED: True}, more=_qwen35, lists=(_RECURRENT, _SECTIONS))
_QWEN35_MOE: Final = _QWEN35._replace(
    settings={**_SPARSE, "shared_expert_intermediate_size": _SHARED_EXPERT}, fixed={**_EVERY, TILED: True}
)
_LFM2: Final = Said(
    {"conv_L_cache": "shortconv.l_cache"}, {"conv_bias": False, "block_auto_adjust_ff_dim": False}, _lfm2, (SHARED,)
)
SAID: Final = {
    **dict.fromkeys(FAMILIES, Said()),
    "gemma2": Said(more=_gemma2), "gemma3_text": Said(more=_gemma3), "phi3": Said(more=_phi3),
    "smollm3": Said(more=_smollm3), "exaone4": Said(more=_exaone4), "ministral3": Said(more=_ministral3),
    "gemma4_text": Said(more=_gemma4, lists=(SHARED, INNER)),
    "granite": Said(_FACTORS, more=_granite),
    "granitemoehybrid": Said(_FACTORS, more=_granite_moe, lists=(SHARED,)),
    "mixtral": Said(_LOCAL, {"sliding_window": None}),
    "qwen3_moe": Said(_SPARSE, _EVERY),
    "qwen3_5_text": _QWEN35, "qwen3_5_moe_text": _QWEN35_MOE,
    "qwen3_next": _QWEN35_MOE._replace(fixed={**_EVERY, TILED: False}),
    "gpt_oss": Said({**_LOCAL, "intermediate_size": _EXPERTS[2], "sliding_window": WINDOW}, SWIGLU, _gpt_oss),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2._replace(
        settings={**_LFM2.settings, **_SPARSE}, more=_lfm2_moe,
        fixed={**_LFM2.fixed, **_EVERY, "use_expert_bias": True, "routed_scaling_factor": 1.0},
    ),
}  # fmt: skip
"""By model type."""
