"""An index of a growing text, which finds the last earlier match of its ending.

Source: Saxena 2023, "Prompt Lookup Decoding"; names as in ``transformers`` (``max_matching_ngram_size``). N-grams are
indexed as the text grows, so a lookup takes the same time in a long text as in a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final, final

from draftwood.draft.proposed import ProposedChains

_ANY_TOKEN: Final = 1 << 63  # vocabulary size: the drafter cuts off tokens that the target lacks
_MAX_NGRAM: Final = 3  # tokens of the longest n-gram that is looked up
MAX_AGREED = 16
"""Matches longer than this count as this long."""


@final
class NgramIndex:
    """Index of one growing text and its source.

    Args:
        source: the encoder's input, which is searched too.
    """

    def __init__(self, source: Sequence[int] = ()) -> None:
        self._tokens = list(source)
        self._border = len(self._tokens)
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its last occurrence
        self._indexed = 0  # positions up to here are indexed

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """See :class:`draftwood.draft.proposed.Proposer`."""
        return self.follow(text, count, _ANY_TOKEN)[0]

    def follow(self, text: Sequence[int], count: int, vocab: int) -> tuple[list[int], int]:
        """Find the last earlier match of the longest n-gram that ends ``text``. The n-gram never reaches into the source.

        Returns up to ``count`` tokens that followed the match, and how many tokens agree there (at most ``MAX_AGREED``).

        Args:
            text: the text of the previous call, possibly with more tokens at its end.
            vocab: the result ends before the first token of this number or above: a source may hold tokens that the decoder
                never writes.
        """
        tokens = self._tokens
        tokens.extend(text[len(tokens) - self._border :])
        n = len(tokens)
        for size in range(1, _MAX_NGRAM + 1):
            first = max(self._indexed + 1, size)  # the end of the first new n-gram
            grams = zip(*(tokens[first - size + i : n - size + i] for i in range(size)), strict=False)
            self._after.update(zip(grams, range(first, n), strict=False))
        self._indexed = max(self._indexed, n - 1)
        for size in range(min(_MAX_NGRAM, len(text), n - 1), 0, -1):
            if (at := self._after.get(tuple(tokens[n - size :]))) is not None:
                longest = min(MAX_AGREED, len(text), at)
                while size < longest and tokens[at - 1 - size] == tokens[n - 1 - size]:
                    size += 1
                return list(takewhile(lambda token: token < vocab, tokens[at : at + count])), size
        return [], 0


def ngram(length: int) -> ProposedChains:
    """Drafts chains of up to ``length`` tokens by prompt lookup; no draft model."""
    return ProposedChains("ngram", NgramIndex, length)
