"""An index of a growing text, which finds the last match of its ending, or where it stands in a text that it repeats.

Source: Saxena 2023, "Prompt Lookup Decoding"; names as in ``transformers`` (``max_matching_ngram_size``). N-grams are
indexed as the text grows, so a lookup takes the same time in a long text as in a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final, final

from draftwood.draft.alignment import MAX_AGREED, Alignment
from draftwood.draft.proposed import ProposedChains

_ANY_TOKEN: Final = 1 << 63  # vocabulary size: the drafter cuts off tokens that the target lacks
_MAX_NGRAM: Final = 3  # tokens of the longest n-gram that is looked up


@final
class NgramIndex:
    """Index of one growing text and its source.

    Args:
        source: the encoder's input, which is searched too.
        draft_text: a text that the next tokens may repeat from its beginning, which is searched too.
    """

    def __init__(self, source: Sequence[int] = (), draft_text: Sequence[int] = ()) -> None:
        self._tokens = [*source, *draft_text]
        self._border = len(self._tokens)
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its last occurrence
        self._indexed = 0  # positions up to here are indexed
        self._draft_text = draft_text
        self._alignment: Alignment | None = None

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """See :class:`draftwood.draft.proposed.Proposer`."""
        return self.follow(text, count, _ANY_TOKEN)[0]

    def follow(self, text: Sequence[int], count: int, vocab: int) -> tuple[list[int], int]:
        """Find the last earlier match of the longest n-gram that ends ``text``. The n-gram never reaches into the source.

        Behind a long match, and in a draft text, the place is followed where the text differs from it by a few tokens.

        Returns up to ``count`` tokens that followed the match, and how many tokens agree there (at most ``MAX_AGREED``).

        Args:
            text: the text of the previous call, possibly with more tokens at its end.
            vocab: the result ends before the first token of this number or above: a source may hold tokens that the decoder
                never writes.
        """
        tokens = self._tokens
        tokens.extend(text[len(tokens) - self._border :])
        at, agreed = self._match(len(text))
        found = tokens[at : at + count] if agreed else []
        if self._draft_text and self._alignment is None:
            self._alignment = Alignment(self._draft_text, 0, len(text))
        if self._alignment is not None:
            aligned, sure = self._alignment.follow(text, count)
            if aligned and sure >= max(agreed, 1):
                return list(takewhile(lambda token: token < vocab, aligned)), sure
        if agreed == MAX_AGREED:
            self._alignment = Alignment(tokens, at, len(text))
        return list(takewhile(lambda token: token < vocab, found)), agreed

    def _match(self, longest: int) -> tuple[int, int]:
        """The position after the last match of the longest n-gram of at most ``longest`` tokens, and how many agree."""
        tokens, n = self._tokens, len(self._tokens)
        for size in range(1, _MAX_NGRAM + 1):
            first = max(self._indexed + 1, size)  # the end of the first new n-gram
            grams = zip(*(tokens[first - size + i : n - size + i] for i in range(size)), strict=False)
            self._after.update(zip(grams, range(first, n), strict=False))
        self._indexed = max(self._indexed, n - 1)
        for size in range(min(_MAX_NGRAM, longest, n - 1), 0, -1):
            if (at := self._after.get(tuple(tokens[n - size :]))) is not None:
                most = min(MAX_AGREED, longest, at)
                while size < most and tokens[at - 1 - size] == tokens[n - 1 - size]:
                    size += 1
                return at, size
        return 0, 0


def ngram(length: int) -> ProposedChains:
    """Drafts chains of up to ``length`` tokens by prompt lookup; no draft model."""
    return ProposedChains("ngram", NgramIndex, length)
