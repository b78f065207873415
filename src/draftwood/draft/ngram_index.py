"""What comes next according to texts: the last match of a text's ending in itself and in earlier texts, or its place in one
that it repeats.

Source: Saxena 2023, "Prompt Lookup Decoding"; names as in ``transformers`` (``max_matching_ngram_size``). N-grams are
indexed as the text grows, so a lookup takes the same time in a long text as in a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, final

from draftwood.core.history import SIZES, History
from draftwood.draft.alignment import MAX_AGREED, Alignment
from draftwood.sampling.rows import Row

_MAX_NGRAM: Final = 3  # tokens of the longest n-gram that is looked up in the text itself
_AHEAD: Final = 4096  # tokens of an earlier text that are followed before it is looked up again


class Match(NamedTuple):
    """A text that may go on like another one.

    Attributes:
        tokens: that may come next.
        agreed: number of tokens before them that agree, at most ``MAX_AGREED``.
        earlier: they stand in an earlier text, not in this one, its source or its draft text.
    """

    tokens: list[int]
    agreed: int
    earlier: bool = False


@final
class NgramIndex:
    """Index of one growing text and what it may repeat.

    Args:
        source: the encoder's input, which is searched too.
        draft_text: a text that the next tokens may repeat from its beginning, which is searched too.
        history: earlier texts, of which those of ``owner`` are searched too.
    """

    def __init__(
        self,
        source: Sequence[int] = (),
        draft_text: Sequence[int] = (),
        history: History | None = None,
        owner: str = "",
    ) -> None:
        self._source, self._draft_text, self._history, self._owner = source, draft_text, history, owner
        self._tokens = [*source, *draft_text]
        self._border = len(self._tokens)
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its last occurrence
        self._indexed = 0  # positions up to here are indexed
        self._followed: tuple[Alignment, bool] | None = None  # and whether it is an earlier text

    @staticmethod
    def of(row: Row) -> NgramIndex:
        """The index of a row."""
        return NgramIndex(row.source, row.draft_text, row.history, row.owner)

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """See :class:`draftwood.draft.proposed.Proposer`."""
        return max(self.matches(text, count), key=lambda match: match.agreed).tokens

    def matches(self, text: Sequence[int], count: int) -> list[Match]:
        """The last earlier match of the longest n-gram that ends ``text``, and of its longest ending in earlier texts.

        The n-gram never reaches into the source. Behind a long match, and in a draft text, the place is followed where the
        text differs from it by a few tokens.

        Args:
            text: the text of the previous call, possibly with more tokens at its end.
            count: the most tokens of a match.
        """
        tokens = self._tokens
        tokens.extend(text[len(tokens) - self._border :])
        at, agreed = self._match(len(text))
        own, aligned = Match(tokens[at : at + count] if agreed else [], agreed), self._aligned(text, count)
        best = aligned if aligned.tokens and aligned.agreed >= max(agreed, 1) else own
        if best.agreed == MAX_AGREED:
            if best is own:
                self._followed = Alignment(tokens, at, len(text)), False
            return [best]
        return [best, *self._earlier(text, count)]

    def _aligned(self, text: Sequence[int], count: int) -> Match:
        """What comes next in the text that is followed."""
        if self._followed is None:
            if not self._draft_text:
                return Match([], 0)
            self._followed = Alignment(self._draft_text, 0, len(text)), False
        alignment, earlier = self._followed
        return Match(*alignment.follow(text, count), earlier)

    def _earlier(self, text: Sequence[int], count: int) -> list[Match]:
        """What came next in an earlier text, if its ending is known. It is followed from a long match on."""
        if self._history is None:
            return []
        ending = text if len(text) >= SIZES[-1] else [*self._source, *text]
        place, agreed = self._history.find(ending, self._owner)
        if not agreed:
            return []
        tokens = self._history.after(place, _AHEAD if agreed >= MAX_AGREED else count)
        if agreed >= MAX_AGREED:
            self._followed = Alignment(tokens, 0, len(text)), True
        return [Match(tokens[:count], min(agreed, MAX_AGREED), True)]

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
