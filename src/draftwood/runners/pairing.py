"""Digests of models and vocabularies, by which a drafter knows its target."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from draftwood.core.token_texts import tokens_digest


def digest_of(model: Any) -> str:
    """Digest (16 hexadecimal digits) of the names and bfloat16 values of all weights.

    Weights saved as bfloat16 give the same digest if loaded as float32 or as bfloat16.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        if "embed_positions" not in name:  # fixed sinusoids are not saved
            digest.update(name.encode())
            digest.update(weight.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def vocabulary_digest(tokenizer: Any) -> str:
    """Digest (16 hexadecimal digits) of a tokenizer's tokens and their numbers."""
    return tokens_digest((index, token) for token, index in tokenizer.get_vocab().items())
