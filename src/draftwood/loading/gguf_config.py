"""The configuration of a GGUF file's model, as ``config.json`` would have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

from draftwood.core.errors import ModelError
from draftwood.loading.gguf_header import OTHER_FILES, Header, TensorInfo
from draftwood.loading.gguf_keys import OWN_SCALE, refuse_unread, rotary_scaling, unread, values_of
from draftwood.runners.native.families import EMBEDDING as TABLE
from draftwood.runners.native.families import FAMILIES, HEAD, SWIGLU
from draftwood.runners.native.layouts import gguf_names
from draftwood.runners.native.refusals import why_not_config
from draftwood.runners.native.rotary import rotary_frequencies
from draftwood.runners.native.states import TILED
from draftwood.runners.native.weights import BLOCKS
from draftwood.runners.plain_config import PlainConfig
from draftwood.runners.windows import FULL, SLIDING

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
WHOLE: Final = {TABLE: EMBEDDING, HEAD: OUTPUT}
"""Names of embedding and head, in ``transformers`` and in files."""
_TYPES: Final = {
    (family.gguf or kind, bool(family.experts)): kind for kind, family in FAMILIES.items() if family.gguf is not None
}
"""Model types by architecture, of mixtures of experts and others."""
ROPE: Final = "rope_freqs.weight"  # divisors of the rotary frequencies, as Llama 3.1 and its successors have them
LONG: Final = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}  # of Phi-3
_LLAMA3: Final = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_TOKENS: Final = {"bos": "bos", "eos": "eos", "pad": "padding"}
_NEEDED: Final = (
    "embedding_length", "block_count", "attention.head_count", "attention.layer_norm_rms_epsilon",
)  # fmt: skip
_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_INNER, _EXPERT, _EXPERTS = "feed_forward_length", "expert_feed_forward_length", ("expert_count", "expert_used_count")
_SHARED, _INTERVAL, _RECURRENT = "attention.head_count_kv", "full_attention_interval", "attention.recurrent_layers"
_SECTIONS, _AHEAD, _TURNED_SIZE = "rope.dimension_sections", "nextn_predict_layers", "rope.dimension_count"


def type_of(header: Header) -> str | None:
    """The model type of a file that is read here; None for another architecture."""
    return _TYPES.get((header.architecture, bool(header.value(f"{header.architecture}.expert_count"))))


def stored_config(header: Header) -> dict[str, Any] | None:
    """The configuration of a file's model; None for one that is not read here.

    Raises:
        ModelError: the file lacks a number, or has a key that is not read, in an architecture that is.
    """
    known = all(tensor.kind in BLOCKS for tensor in header.tensors)
    sizes = {tensor.name: tensor.sizes for tensor in header.tensors}
    if not known or EMBEDDING not in sizes or (kind := type_of(header)) is None:
        return None
    found = _config(header, kind, values_of(header), sizes)
    config = PlainConfig(**found)
    refuse_unread(header, config, READ.get(config.model_type, ()))
    return found if why_not_config(config) is None else None


def _config(header: Header, kind: str, values: Mapping[str, Any], sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    needed, read = (*_NEEDED, *_MORE_NEEDED.get(kind, (_INNER,))), (_PATTERN, *READ.get(kind, ()))
    if lacks := [name for name in needed if name not in values]:
        raise ModelError(f"{header} does not say {header.architecture}.{lacks[0]}: {OTHER_FILES}")
    if listed := [name for name, value in values.items() if isinstance(value, list) and name not in read]:
        raise unread(header, listed[0], values[listed[0]])
    scaling, factor = rotary_scaling(values)
    linear = {"factor": float(factor)} if scaling == "linear" else {}
    base = float(values.get("rope.freq_base", 10000.0))
    width, heads = int(values["embedding_length"]), int(values["attention.head_count"])
    shared = values.get(_SHARED, heads)
    found = {
        "model_type": kind,
        "architectures": [FAMILIES[kind].name],
        "vocab_size": sizes[EMBEDDING][-1],
        "hidden_size": width,
        **({"intermediate_size": int(values[_INNER])} if _INNER in values else {}),
        "num_hidden_layers": int(values["block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": max(shared) if isinstance(shared, list) else int(shared),
        "head_dim": int(values.get("attention.key_length", width // heads)),
        FAMILIES[kind].epsilon: float(values["attention.layer_norm_rms_epsilon"]),
        "max_position_embeddings": int(values.get("context_length", 2048)),
        "rope_parameters": {"rope_type": scaling if linear else "default", "rope_theta": base, **linear},
        FAMILIES[kind].activation or "hidden_act": "silu",
        "tie_word_embeddings": OUTPUT not in sizes,
        **{f"{name}_token_id": header.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _TOKENS.items()},
    }
    names = gguf_names(kind)
    for part, setting in FAMILIES[kind].biases.items():
        if setting:
            held = next(stem for module, stem in names.items() if module.startswith(part))
            found[setting] = f"blk.0.{held}.bias" in sizes
    if kind in _OWN:
        found |= _OWN[kind](header, values, found)
    return found


def _kinds(values: Mapping[str, Any], layers: int, period: int) -> list[str]:
    """The types of layers: all but the last of each period slide, unless the file says which."""
    said = values.get(_PATTERN, period)
    if not isinstance(said, list):
        said = [said if isinstance(said, bool) else number % said != 0 for number in range(1, layers + 1)]
    return [SLIDING if slides else FULL for slides in said]


def _gemma2(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    layers, heads, second = config["num_hidden_layers"], config["num_attention_heads"], header.architecture == "gemma2"
    wide = layers == OWN_SCALE[header.architecture]  # the largest one
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config["hidden_size"] // heads if wide else config["head_dim"],
        "sliding_window": int(values.get(_WINDOW, 4096)),
        "layer_types": _kinds(values, layers, 2 if second else 6),
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
    return {**config["rope_parameters"], "partial_rotary_factor": values.get(_TURNED_SIZE, size) / size}


def _phi3(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {tensor.name: tensor for tensor in header.tensors}
    rotary = _partly(values, config)
    if LONG["short_factor"] in tensors:
        original = int(values.get("rope.scaling.original_context_length", config["max_position_embeddings"]))
        rotary |= {"rope_type": "longrope", "original_max_position_embeddings": original}
        rotary |= {name: numbers_of(header, tensors[held]).tolist() for name, held in LONG.items()}
        rotary["attention_factor"] = float(values.get("rope.scaling.attn_factor", 1.0))
    return {"rope_parameters": rotary, "sliding_window": values.get(_WINDOW) or None}


def _smollm3(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    layers = range(1, config["num_hidden_layers"] + 1)
    return {"no_rope_layers": [int(number % 4 != 0) for number in layers], "layer_types": None, "sliding_window": None}


def _exaone4(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    window = values.get(_WINDOW) or None
    kinds = _kinds(values if window else {_PATTERN: False}, config["num_hidden_layers"], 4)
    return {"sliding_window": window, "sliding_window_pattern": 4 if window else 0, "layer_types": kinds}


def _granite(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {setting: float(values[key]) for setting, key in zip(_FACTORS, _MORE_NEEDED["granite"], strict=False)}


def _all_rotated(sections: Any, pairs: int) -> bool:
    """Whether each pair of numbers is in one of three interleaved sections: in a text all three have the same positions."""
    if not isinstance(sections, list) or len(sections) < 3 or min(sections) < 0:
        return isinstance(sections, int) and sections > 0
    return all(one < 3 * sections[one % 3] for one in (pair % sum(sections) for pair in range(pairs)))


def _qwen35(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    taps, size, keys, heads, inner = (int(values[name]) for name in _RULE)
    layers, rotary = config["num_hidden_layers"] - int(values.get(_AHEAD, 0)), _partly(values, config)
    period, said = int(values.get(_INTERVAL, 4)), values.get(_RECURRENT)
    recurrent = said if isinstance(said, list) else [said] * layers
    if said is None:
        recurrent = [number % period != 0 for number in range(1, layers + 1)] if period > 0 else []
    if len(recurrent) < layers:
        name = _INTERVAL if said is None else _RECURRENT
        raise unread(header, name, values[name])
    if heads < 1 or inner % heads:
        raise unread(header, "ssm.inner_size", inner)
    if _SECTIONS in values and not _all_rotated(values[_SECTIONS], values.get(_TURNED_SIZE, config["head_dim"]) // 2):
        raise unread(header, _SECTIONS, values[_SECTIONS])
    return {
        "num_hidden_layers": layers, "layer_types": ["linear_attention" if one else FULL for one in recurrent[:layers]],
        "linear_conv_kernel_dim": taps, "linear_key_head_dim": size, "linear_num_key_heads": keys,
        "linear_num_value_heads": heads, "linear_value_head_dim": inner // heads, "rope_parameters": rotary, TILED: True,
    }  # fmt: skip


def _mixtral(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    count, used = (int(values[name]) for name in _EXPERTS)
    return {"num_local_experts": count, "num_experts_per_tok": used, "sliding_window": None}


def _qwen3_moe(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    count, used = (int(values[name]) for name in _EXPERTS)
    return {
        "num_experts": count, "num_experts_per_tok": used, "moe_intermediate_size": int(values[_EXPERT]),
        "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1,
    }  # fmt: skip


def _qwen35moe(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    shared = {"shared_expert_intermediate_size": int(values[_SHARED_EXPERT])}
    return {**_qwen35(header, values, config), **_qwen3_moe(header, values, config), **shared}


def _qwen3_next(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_qwen35moe(header, values, config), TILED: False}


def _lfm2(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    layers, shared = config["num_hidden_layers"], values.get(_SHARED, config["num_key_value_heads"])
    each = shared if isinstance(shared, list) else [shared] * layers
    if len(each) != layers or set(each) - {0, config["num_key_value_heads"]}:
        raise unread(header, _SHARED, shared)
    return {
        "layer_types": [FULL if one else "conv" for one in each], "conv_L_cache": int(values["shortconv.l_cache"]),
        "conv_bias": False, "block_auto_adjust_ff_dim": False,
    }  # fmt: skip


def _gpt_oss(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    count, used = (int(values[name]) for name in _EXPERTS)
    rotary = config["rope_parameters"]
    if (scaling := rotary_scaling(values))[0] == "yarn":
        original = int(values.get("rope.scaling.original_context_length", config["max_position_embeddings"]))
        rotary = {**rotary, "rope_type": "yarn", "factor": float(scaling[1]), "original_max_position_embeddings": original}
        betas = {"beta_slow": 1.0, "beta_fast": 32.0}
        rotary |= {name: float(values.get(f"rope.scaling.yarn_{name}", beta)) for name, beta in betas.items()}
        rotary["truncate"] = False  # as the model was trained: llama.cpp rounds the ends of the ramp to whole numbers
    return {
        **SWIGLU, "num_local_experts": count, "num_experts_per_tok": used, "intermediate_size": int(values[_EXPERT]),
        "sliding_window": int(values[_WINDOW]), "layer_types": _kinds(values, config["num_hidden_layers"], 2),
        "rope_parameters": rotary,
    }  # fmt: skip


_FACTORS: Final = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
_RULE: Final = ("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size")
_SHARED_EXPERT: Final = "expert_shared_feed_forward_length"
_MORE_NEEDED: Final = {
    "granite": ("embedding_scale", "residual_scale", "attention.scale", "logit_scale", _INNER),
    "mixtral": (*_EXPERTS, _INNER), "qwen3_moe": (*_EXPERTS, _EXPERT), "qwen3_5_text": (*_RULE, _INNER),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_next"), (*_RULE, *_EXPERTS, _EXPERT, _SHARED_EXPERT)),
    "lfm2": ("shortconv.l_cache", _INNER), "gpt_oss": (*_EXPERTS, _EXPERT, _WINDOW),
}  # fmt: skip
_RULE_READ: Final = (*_RULE, _INTERVAL, _RECURRENT, _SECTIONS, _AHEAD)
READ: Final = {
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), _RULE_READ), "lfm2": ("shortconv.l_cache", _SHARED),
}  # fmt: skip
"""Keys that a configuration is made of, whatever they say."""
_OWN: Final[Mapping[str, Callable[[Header, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]]] = {
    "gemma2": _gemma2, "gemma3_text": _gemma3, "phi3": _phi3, "smollm3": _smollm3, "exaone4": _exaone4, "granite": _granite,
    "qwen3_5_text": _qwen35, "lfm2": _lfm2, "mixtral": _mixtral, "qwen3_moe": _qwen3_moe, "qwen3_5_moe_text": _qwen35moe,
    "qwen3_next": _qwen3_next, "gpt_oss": _gpt_oss,
}  # fmt: skip
"""What files of a model type say in their own way, or leave to the program that reads them."""


def numbers_of(header: Header, tensor: TensorInfo) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor of float32 numbers."""
    path, begin, _ = header.place_of(tensor, 1, 4)
    return np.fromfile(path, np.float32, tensor.elements, offset=begin)


def scale_rotary(header: Header, config: Any, tensor: TensorInfo) -> None:
    """Set the rotary scaling of Llama 3.1 and its successors, which a file holds only as a tensor of divisors; raises a
    ModelError for another scaling."""
    divisors = torch.from_numpy(numbers_of(header, tensor))
    if torch.allclose(divisors, torch.ones(())):
        return
    plain, _ = rotary_frequencies(config)
    config.rope_parameters = {**config.rope_parameters, **_LLAMA3, "factor": float(divisors.max())}
    scaled, _ = rotary_frequencies(config)
    if not torch.allclose(plain / divisors, scaled, rtol=1e-3):
        raise ModelError(f"{header} scales its rotary embedding in a way that is not known: {OTHER_FILES}")
