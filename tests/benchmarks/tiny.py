"""Tiny models and a tokenizer of characters."""

import torch
from click.testing import CliRunner
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.__main__ import main
from benchmarks.measure import Sample

VOCAB = 96


def call(*arguments, code=0):
    """``python -m benchmarks`` with these arguments, which ends with this code."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def made_up_sample(tokens, *, forwards=1, **seconds):
    """The measurement of one text; without seconds it took a second."""
    times = dict(seconds=1.0, target_seconds=0.0, draft_seconds=0.0, verify_seconds=0.0) | seconds
    return Sample(
        tokens=[[1] * tokens], forwards=forwards, row_forwards=forwards, draft_forwards=0, target_tokens=0, draft_tokens=0,
        drafted=0, **times,
    )  # fmt: skip


class Letters:
    """A tokenizer of characters."""

    bos_token = bos_token_id = None
    eos_token_id = None

    def __call__(self, text):
        return {"input_ids": [ord(c) % VOCAB for c in text]}


def tiny_llama(spread):
    """A random one-layer transformer; ``spread`` makes its distributions more or less peaked."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=160, initializer_range=spread, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()
