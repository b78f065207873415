"""Which target a drafter was trained for."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from draftwood.core.errors import PairingError


def digest_of(model: Any) -> str:
    """Sixteen hexadecimal digits that depend on every weight of a model, as bfloat16, and on the names of the weights.

    A model has the same digest whether it was loaded as float32 or bfloat16 from weights saved as bfloat16.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        if "embed_positions" not in name:  # fixed sinusoids, which are not saved
            digest.update(name.encode())
            digest.update(weight.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def whole_digest(model: Any) -> str:
    """Sixty-four hexadecimal digits that depend on every bit of every weight and saved buffer, and on their names.

    Unlike with :func:`digest_of`, models that agree once they are rounded to bfloat16 differ here.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def check_target(drafter: Any, target: Any) -> None:
    """Refuse a drafter that was trained for another target.

    Raises:
        PairingError: says which target was wanted and which came.
    """
    wanted, found = drafter.config.target, digest_of(target)
    if wanted != found:
        raise PairingError(
            f"the drafter was trained for the target with digest {wanted}, this target has {found}; "
            "give the target of the drafter's training, or train a drafter for this one"
        )
