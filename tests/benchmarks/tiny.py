"""Tiny models, a tokenizer of characters and a few prompts."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.prompts import Prompt

VOCAB = 96
PROMPTS = [Prompt(source=s, tokens=t) for s, t in (("a", (1, 2, 3)), ("b", (4, 5)), ("a", (7, 8, 9, 10)))]


class Letters:
    """A tokenizer of characters."""

    bos_token = bos_token_id = None
    eos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) % VOCAB for c in text]}


def tiny_llama(spread: float) -> LlamaForCausalLM:
    """A random one-layer transformer; ``spread`` makes its distributions more or less peaked."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=160, initializer_range=spread, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()
