"""The texts and tokens that a model accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from jaxtyping import Int
from torch import Tensor


@final
class TextLimits:
    """The limits of a target; a draft model accepts every input.

    Nothing is drafted beyond the context of a draft model. Tokens that it does not know only make its distribution worse.

    Args:
        check: raises a CacheError if a text of this many tokens, the root included, does not fit the model.
        known: number of token embeddings.
        drafts: the model is a draft model.
    """

    def __init__(self, check: Callable[[int], None], known: int, *, drafts: bool) -> None:
        self._check = check
        self._known = known
        self._drafts = drafts

    def check(self, length: int) -> None:
        """Raise a CacheError for a target's text that does not fit."""
        if not self._drafts:
            self._check(length)

    def clamp(self, tokens: Int[Tensor, "row new"]) -> Int[Tensor, "row new"]:
        """The tokens that the model reads; a draft model reads its last known token for unknown ones."""
        return tokens.clamp(max=self._known - 1) if self._drafts else tokens

    def clamp_texts(self, texts: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """The same for lists of tokens."""
        return [[min(token, self._known - 1) for token in text] for text in texts] if self._drafts else texts
