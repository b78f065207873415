"""The texts and tokens that a model accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from jaxtyping import Int
from torch import Tensor

from draftwood.core.errors import CacheError


@final
class TextLimits:
    """The limits of a target; a draft model accepts every input.

    Nothing is drafted beyond the context of a draft model. Tokens that it does not know only make its distribution worse.

    Args:
        longest: the longest text in tokens, the root included; None if unlimited.
        said: what takes no longer text, and what to do.
        known: number of token embeddings.
        drafts: the model is a draft model.
    """

    def __init__(self, longest: int | None, said: str, known: int, *, drafts: bool) -> None:
        self._longest, self._said = longest, said
        self._known = known
        self._drafts = drafts

    def check(self, length: int) -> None:
        """Raise a CacheError for a target's text that does not fit."""
        if not self._drafts and self._longest is not None and length > self._longest:
            raise CacheError(f"the text has {length} tokens, but {self._said}")

    def clamp(self, tokens: Int[Tensor, "row new"]) -> Int[Tensor, "row new"]:
        """The tokens that the model reads; a draft model reads its last known token for unknown ones."""
        return tokens.clamp(max=self._known - 1) if self._drafts else tokens

    def clamp_texts(self, texts: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """The same for lists of tokens."""
        return [[min(token, self._known - 1) for token in text] for text in texts] if self._drafts else texts
