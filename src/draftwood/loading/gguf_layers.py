"""What GGUF files say of the layers of a model, and of Gemma 4, whose layers are unlike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from draftwood.core.errors import ModelError
from draftwood.loading.gguf_header import AGAIN, OTHER_FILES, Header, TensorInfo
from draftwood.loading.gguf_keys import unread
from draftwood.runners.windows import FULL, SLIDING

WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
INNER, SHARED, TURNED_SIZE = "feed_forward_length", "attention.head_count_kv", "rope.dimension_count"
ROPE: Final = "rope_freqs.weight"  # divisors of the rotary frequencies, as Llama 3.1 and its successors have them
_WIDE_SIZE, _NEAR_SIZE, _NEAR_VALUES = (f"attention.{name}" for name in ("key_length", "key_length_swa", "value_length_swa"))
_NEAR_TURNED, _LENT = "rope.dimension_count_swa", "attention.shared_kv_layers"
_LAYER_INPUT: Final = "embedding_length_per_layer_input"
EXPERTS: Final = ("expert_count", "expert_used_count", "expert_feed_forward_length")
_OF_EXPERTS: Final = ("num_experts", "top_k_experts", "moe_intermediate_size")
_STILL: Final = 1e20  # radians are divided by at least that: such a number of a head does not turn
GEMMA4_NEEDED: Final = (_WIDE_SIZE, _NEAR_SIZE, WINDOW, PATTERN, _LAYER_INPUT, INNER)
GEMMA4_READ: Final = (SHARED, INNER, _NEAR_SIZE, _NEAR_VALUES, TURNED_SIZE, _NEAR_TURNED, _LENT, _LAYER_INPUT)
"""Keys that its configuration is made of, whatever they say."""


def numbers_of(header: Header, tensor: TensorInfo) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor of float32 numbers."""
    path, begin, _ = header.place_of(tensor, 1, 4)
    return np.fromfile(path, np.float32, tensor.elements, offset=begin)


def layer_kinds(values: Mapping[str, Any], layers: int, period: int) -> list[str]:
    """The types of layers: all but the last of each period slide, unless the file says which."""
    said = values.get(PATTERN, period)
    if not isinstance(said, list):
        said = [said if isinstance(said, bool) else number % said != 0 for number in range(1, layers + 1)]
    return [SLIDING if slides else FULL for slides in said]


def gemma4(header: Header, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of Gemma 4: heads of layers of sliding attention have sizes of their own."""
    layers, wide, near = config["num_hidden_layers"], config["head_dim"], int(values[_NEAR_SIZE])
    for name, size in {_NEAR_VALUES: near, TURNED_SIZE: wide, _NEAR_TURNED: near}.items():
        if values.get(name, size) != size:
            raise unread(header, name, values[name], size)
    kinds = layer_kinds(values, layers, 6)
    if len(kinds) != layers or kinds[-1] != FULL:
        raise unread(header, PATTERN, values[PATTERN])
    heads = _heads_by_kind(header, values.get(SHARED, config["num_attention_heads"]), kinds)
    lent, twice = int(values.get(_LENT, 0)), isinstance(values[INNER], list)
    small = config["intermediate_size"]
    if twice and values[INNER] != [small] * (layers - lent) + [2 * small] * lent:
        raise unread(header, INNER, values[INNER])
    tensors = {tensor.name: tensor for tensor in header.tensors}
    experts = {setting: int(values.get(key, 0)) for setting, key in zip(_OF_EXPERTS, EXPERTS, strict=True)}
    sliding = {"rope_type": "default", "rope_theta": float(values.get("rope.freq_base_swa", 10000.0))}
    full = {"rope_type": "proportional", "partial_rotary_factor": _turned_part(header, tensors, wide)}
    return {
        "hidden_activation": "gelu_pytorch_tanh", "head_dim": near, "global_head_dim": wide, "layer_types": kinds,
        "num_key_value_heads": heads.get(SLIDING, heads[FULL]), "num_global_key_value_heads": heads[FULL],
        "attention_k_eq_v": f"blk.{kinds.index(FULL)}.attn_v.weight" not in tensors,
        "num_kv_shared_layers": lent, "use_double_wide_mlp": twice,
        "hidden_size_per_layer_input": int(values[_LAYER_INPUT]), "vocab_size_per_layer_input": config["vocab_size"],
        "sliding_window": int(values[WINDOW]), "final_logit_softcapping": values.get("final_logit_softcapping"),
        "enable_moe_block": experts["num_experts"] > 0, **experts,
        "rope_parameters": {SLIDING: sliding, FULL: {**config["rope_parameters"], **full}},
    }  # fmt: skip


def _heads_by_kind(header: Header, said: Any, kinds: list[str]) -> dict[str, int]:
    """Heads of keys and values of each type of layers."""
    each = said if isinstance(said, list) else [said] * len(kinds)
    heads = {kind: int(count) for kind, count in zip(kinds, each, strict=False)}
    if each != [heads[kind] for kind in kinds]:
        raise unread(header, SHARED, said)
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
