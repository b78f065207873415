"""Tiny models and a tokenizer of characters."""

from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.measure import Sample
from tests.faults import folders

VOCAB = 96


def call(*arguments, code=0):
    """``python -m benchmarks`` with these arguments, which ends with this code."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def made_up_sample(tokens):
    """The measurement of one text, which took a second."""
    counts = dict.fromkeys(("draft_forwards", "target_tokens", "draft_tokens", "drafted"), 0) | {
        "forwards": 1,
        "row_forwards": 1,
    }
    times = dict.fromkeys(("target_seconds", "draft_seconds", "verify_seconds"), 0.0)
    return Sample(tokens=[[1] * tokens], seconds=1.0, **counts, **times)


class Letters:
    """A tokenizer of characters."""

    bos_token = bos_token_id = None
    eos_token_id = None

    def __call__(self, text):
        return {"input_ids": [ord(c) % VOCAB for c in text]}


def tiny_llama(spread):
    """A random one-layer transformer; ``spread`` makes its distributions more or less peaked."""
    sizes = {"num_key_value_heads": 1, "intermediate_size": 32, "max_position_embeddings": 160, "initializer_range": spread}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return folders.tiny_llama(VOCAB, layers=1, **sizes, **ends).eval()
