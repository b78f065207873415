"""The texts and tokens that a model takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from jaxtyping import Int
from torch import Tensor


@final
class TextLimits:
    """What a model takes; a draft model is given more than that, and answers anything.

    Where a draft model's text is beyond its context, nothing is drafted. For tokens that it does not know its distribution
    is only worse.

    Args:
        check: raises a CacheError where a text of so many tokens, the root included, does not fit the model.
        known: tokens that it has embeddings of.
        drafts: it is a draft model.
    """

    def __init__(self, check: Callable[[int], None], known: int, *, drafts: bool) -> None:
        self._check = check
        self._known = known
        self._drafts = drafts

    def check(self, length: int) -> None:
        """Refuse a target's text that does not fit; raises a CacheError."""
        if not self._drafts:
            self._check(length)

    def within(self, tokens: Int[Tensor, "row new"]) -> Int[Tensor, "row new"]:
        """The tokens as the model reads them: for a draft model, unknown ones are the last one that it knows."""
        return tokens.clamp(max=self._known - 1) if self._drafts else tokens
