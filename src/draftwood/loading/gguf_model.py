"""A GGUF file of a family that the native engine runs: its configuration and its weights, as they lie in the file."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from draftwood.core.errors import ModelError
from draftwood.loading.gguf_header import AGAIN, OTHER_FILES, Header, TensorInfo, refuse_part
from draftwood.runners.native.stored import EMBEDDING, FAMILIES, HEAD, StoredModel, rotary_frequencies, shapes_of
from draftwood.runners.native.weights import BLOCKS, FLOATS, Weight

_ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
_LAYER: Final = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_OTHERS: Final = {EMBEDDING: "token_embd.weight", HEAD: "output.weight", "model.norm.weight": "output_norm.weight"}
ROPE: Final = "rope_freqs.weight"  # divisors of the rotary frequencies, as Llama 3.1 and its successors have them
_LLAMA3: Final = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_TURNED: Final = ("self_attn.q_proj", "self_attn.k_proj")  # of llama: heads in llama.cpp's order
_READ: Final = (
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "attention.head_count", "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length",
)  # fmt: skip
"""Keys of an architecture that are read. Others may change the forward."""


def stored_config(header: Header) -> dict[str, Any] | None:
    """The configuration of a file's model, as ``config.json`` would have it; None for one that is not read here."""
    own = header.architecture
    values = {key.removeprefix(f"{own}."): value for key, value in header.metadata.items() if key.startswith(f"{own}.")}
    lacks = {"embedding_length", "block_count", "feed_forward_length", "attention.head_count"} - values.keys()
    known = own in _ARCHITECTURES and not lacks and not set(values) - set(_READ)
    known = known and all(tensor.kind in BLOCKS for tensor in header.tensors)
    if not known or values.get("rope.scaling.type", "none") != "none":
        return None
    names = {tensor.name for tensor in header.tensors}
    found = {tensor.name: tensor for tensor in header.tensors}.get(_OTHERS[EMBEDDING])
    if found is None:
        return None
    width, heads = int(values["embedding_length"]), int(values["attention.head_count"])
    return {
        "model_type": own,
        "architectures": [FAMILIES[own]],
        "vocab_size": found.sizes[-1],
        "hidden_size": width,
        "intermediate_size": int(values["feed_forward_length"]),
        "num_hidden_layers": int(values["block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(values.get("attention.head_count_kv", heads)),
        "head_dim": int(values.get("attention.key_length", values.get("rope.dimension_count", width // heads))),
        "rms_norm_eps": float(values.get("attention.layer_norm_rms_epsilon", 1e-6)),
        "max_position_embeddings": int(values.get("context_length", 2048)),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(values.get("rope.freq_base", 10000.0))},
        "hidden_act": "silu",
        "attention_bias": own != "qwen2" and "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_down.bias" in names,
        "tie_word_embeddings": _OTHERS[HEAD] not in names,
        **{f"{name}_token_id": header.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _TOKENS.items()},
    }


_TOKENS: Final = {"bos": "bos", "eos": "eos", "pad": "padding"}


def stored_gguf(header: Header, config: Any, generation: Any, dtype: torch.dtype, *, coded: bool) -> StoredModel:
    """The model of a file.

    Args:
        config, generation: its configurations, which a rotary scaling and the end of a turn change.
        dtype, coded: as for :class:`StoredModel`.

    Raises:
        ModelError: the file is a part of a model, lacks a tensor or has too many or one of another shape, ends before its
            tensors do, or scales its rotary embedding in an unknown way.
    """
    refuse_part(header)
    tensors, weights = {tensor.name: tensor for tensor in header.tensors}, {}
    divisors = tensors.pop(ROPE, None)
    for name, shape in shapes_of(config).items():
        held = _name(name)
        if name == HEAD and held not in tensors:
            continue
        if (tensor := tensors.pop(held, None)) is None:
            raise ModelError(f"{header} lacks tensor {held!r}: {AGAIN}")
        if (came := tuple(reversed(tensor.sizes))) != shape:
            raise ModelError(
                f"{header} holds tensor {held!r} as {_sizes(came)}, but its metadata make it {_sizes(shape)}: {AGAIN}"
            )
        turned = header.architecture == "llama" and name.rpartition(".")[0].endswith(_TURNED)
        weights[name] = _weight(header, tensor, shape, config.head_dim if turned else 0)
    if tensors:
        first, *more = tensors
        rest = f" and {len(more)} more" if more else ""
        raise ModelError(
            f"{header} holds tensor {first!r}{rest}, which architecture {header.architecture!r} does not have: "
            + OTHER_FILES
        )
    if divisors is not None:
        scale_rotary(header, config, divisors)
    add_end_of_turn(header, generation)
    found = StoredModel(config, generation, weights, dtype, coded=coded)
    found.name_or_path = str(header.path)
    return found


def _name(name: str) -> str:
    """The name in a GGUF file of a tensor of ``transformers``."""
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, kind = rest.rpartition(".")
    return _OTHERS.get(name) or f"blk.{layer}.{_LAYER[part]}.{kind}"


def _weight(header: Header, tensor: TensorInfo, shape: tuple[int, ...], head: int) -> Weight:
    block, size = BLOCKS[tensor.kind]
    if shape[-1] % block:
        raise ModelError(f"{header} holds tensor {tensor.name!r} in blocks of {block}, with rows of {shape[-1]}: {AGAIN}")
    begin, count = header.place_of(tensor, block, size)
    data = np.memmap(header.path, np.uint8, mode="c", offset=begin, shape=(count,))
    return Weight(data=data, kind=tensor.kind, shape=shape, head=head, mapped=True)


def scale_rotary(header: Header, config: Any, tensor: TensorInfo) -> None:
    """Set the rotary scaling of Llama 3.1 and its successors, which a file holds only as a tensor of divisors.

    Raises:
        ModelError: another scaling.
    """
    begin = header.data_start + tensor.offset
    divisors = torch.from_numpy(np.fromfile(header.path, np.float32, tensor.elements, offset=begin))
    if torch.allclose(divisors, torch.ones(())):
        return
    plain, _ = rotary_frequencies(config)
    config.rope_parameters = {**config.rope_parameters, **_LLAMA3, "factor": float(divisors.max())}
    scaled, _ = rotary_frequencies(config)
    if not torch.allclose(plain / divisors, scaled, rtol=1e-3):
        raise ModelError(f"{header} scales its rotary embedding in a way that is not known: {OTHER_FILES}")


def add_end_of_turn(header: Header, generation: Any) -> None:
    """Let the end-of-turn token end a text, as it does in llama.cpp."""
    end, turn = generation.eos_token_id, header.metadata.get("tokenizer.ggml.eot_token_id")
    if turn is not None and end is not None:
        ends = [end] if isinstance(end, int) else list(end)
        generation.eos_token_id = list(dict.fromkeys([*ends, int(turn)]))


def quantized(header: Header) -> bool:
    """Whether a file holds codes."""
    return any(tensor.kind not in FLOATS for tensor in header.tensors)


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
