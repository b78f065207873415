"""Tiny GGUF files, written as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaForCausalLM

from benchmarks.llama_cpp import add_sizes, finish, named
from tests.faults.folders import tiny_llama, tiny_tokenizer

F32, F16, BF16, Q8_0, Q4_1 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_1"))


def source(**settings: Any) -> tuple[LlamaForCausalLM, Any]:
    """A random Llama whose matrices fit blocks of 32, and its tokenizer."""
    tokenizer = tiny_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 1, "max_position_embeddings": 96}
    return tiny_llama(len(tokenizer), **{**sizes, **settings}).eval(), tokenizer


def tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The model's tensors under their GGUF names; tied ones once."""
    return {name: weight.detach().float().numpy() for name, weight in named(model)}


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    tokenizer: Any,
    kind: gguf.GGMLQuantizationType = F16,
    *,
    arch: str = "llama",
    pre: str = "gpt-2",
    leave_out: str = "",
    extra: dict[str, np.ndarray] | None = None,
    metadata: dict[str, int | str | bool] | None = None,
    template: str | None = "{% for m in messages %}<end>{{ m['content'] }}{% endfor %}",
) -> Path:
    """Write a model; matrices as ``kind``, vectors as float32.

    Args:
        pre: how the tokenizer splits text.
        leave_out: a tensor that is not written.
        extra: further tensors.
        metadata: further values.
        template: the chat template.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer, config = gguf.GGUFWriter(path, arch), model.config
    add_sizes(writer, config)
    _add_tokenizer(writer, tokenizer, pre)
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}[type(value)]
        add(key, value)
    for name, array in {**tensors(model), **(extra or {})}.items():
        if name != leave_out:
            own = kind if array.ndim > 1 else F32
            writer.add_tensor(name, gguf.quantize(array, own), raw_dtype=own)
    finish(writer)
    return path


def blocks(rng: np.random.Generator, kind: gguf.GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Random blocks of a type of codes, whose numbers are small."""
    size, count = gguf.GGML_QUANT_SIZES[kind]
    found = rng.integers(0, 256, (rows, columns // size, count), np.uint8)
    halves = rng.uniform(0.002, 0.02, (rows, columns // size, 2)).astype(np.float16)
    if size == 256:
        halves /= 40
    if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        halves[..., 1] *= 8 if size == 256 else -8
        found[..., :4] = halves.view(np.uint8)
    else:
        at = -2 if kind.name == "Q6_K" else 0
        found[..., at : at + 2 or None] = (halves[..., :1] / 16 if kind.name == "Q8_0" else halves[..., :1]).view(np.uint8)
    return found.reshape(rows, -1)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any, pre: str) -> None:
    written = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab = tokenizer.get_vocab()
    special = {token["content"] for token in written["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in written["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)


def rounded(model: LlamaForCausalLM, kind: gguf.GGMLQuantizationType, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model with matrices as the file holds them, in the number format that is kept."""
    state = {}
    for name, weight in model.state_dict().items():
        if weight.ndim > 1:
            held = gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind)
            weight = torch.from_numpy(np.array(held, np.float32))
        state[name] = weight.to(dtype).float()
    model.load_state_dict(state)
    return model


def logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits
