"""Digests of models, and the check that a drafter fits its target."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from draftwood.core.errors import PairingError
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


def check_target(drafter: Any, target: Any) -> None:
    """Raise a PairingError, with both digests, if the drafter was trained for another target."""
    wanted, found = drafter.config.target, digest_of(target)
    if wanted != found:
        raise PairingError(
            f"the drafter was trained for the target with digest {wanted}, this target has {found}; "
            "give the target of the drafter's training, or train a drafter for this one"
        )
