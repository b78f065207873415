"""Prompts that come back before their texts, with log-probabilities where they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from draftwood.core.token_logprobs import TokenLogprob
from draftwood.engine.requests import Request


@final
@dataclass(frozen=True, kw_only=True)
class Echo:
    """A prompt that comes back.

    Attributes:
        text: as it was sent; the text of token ids.
        request: the request whose prompt it is.
        logprobs: one for every token of the prompt after the first; None where none are wanted.
    """

    text: str
    request: Request
    logprobs: Sequence[TokenLogprob] | None = None
