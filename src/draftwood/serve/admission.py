"""Admission by memory: a text begins only while the keys and values of all that are written fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

import torch

from draftwood.api import Pair
from draftwood.engine.requests import Request
from draftwood.hardware.machine import available_memory
from draftwood.serve.errors import bad

_SHARE: Final = 0.5  # of the free memory when the server starts
_GIB: Final = 1 << 30


@final
class Admission:
    """The rows of a batch, the memory for their keys and values, and what texts need of it.

    All rows of a batch have as many slots as the longest one, so ``n`` texts need ``n`` times the memory of the longest.

    Args:
        pair: the models.
        rows: the most texts that are written at a time.
        gibibytes: for all texts; None for half of the memory that is free now.

    Attributes:
        rows: as given.
        token: bytes of a token's keys and values, in target and draft; 0 where the models do not tell.
        budget: bytes for all texts; None for no limit. What the prefix cache takes of them is free for texts at any time.
    """

    def __init__(self, pair: Pair, rows: int, gibibytes: float | None) -> None:
        self.rows = rows
        self.token = pair.target.token_bytes + getattr(pair.draft, "token_bytes", 0)
        self.budget = _free(pair.target.device) if gibibytes is None else int(gibibytes * _GIB)  # None for no limit

    def share(self, requests: Iterable[Request]) -> float:
        """The part of the budget that these texts need at their full lengths; above 1 they do not fit."""
        lengths = [_length(request) for request in requests]
        if not self.budget or not lengths:
            return 0.0
        return min(len(lengths), self.rows) * max(lengths) * self.token / self.budget

    def check(self, request: Request) -> None:
        """Raise an ApiError for a text that does not fit even alone."""
        if self.share([request]) > 1:
            assert self.budget is not None
            need, prompt = _length(request) * self.token / _GIB, len(request.prompt)
            raise bad(
                f"the prompt has {prompt} tokens and the text up to {request.limits.max_new_tokens} more, whose keys and "
                f"values need {need:.3g} GiB, but this server has {self.budget / _GIB:.3g} GiB for all texts: shorten the "
                "prompt, lower max_tokens, or start the server with a larger --max-memory",
                param="max_tokens",
                code="context_length_exceeded",
            )


def _length(request: Request) -> int:
    return len(request.prompt) + request.limits.max_new_tokens


def _free(device: torch.device) -> int | None:
    found = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    return None if found is None else int(found * _SHARE)
