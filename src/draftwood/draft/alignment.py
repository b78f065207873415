"""Where a text stands in another one that it largely repeats: the file that is being edited, the page that is quoted.

The place moves on with the text. Where both part, it is found again behind a replacement, an insertion or an omission, and a
replacement that was seen once is expected wherever the same tokens come again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

_AHEAD: Final = 96
"""Tokens of the longest omission behind which a text is found again, and twice as many old ones that are looked at."""
_SURE: Final = 3
"""Tokens that agree again before a place counts as found."""
_LONGEST: Final = 12
"""Tokens of the longest replacement that is remembered."""
MAX_AGREED: Final = 16
"""Matches longer than this count as this long."""


@final
class Alignment:
    """The place of a growing text in an old one.

    Args:
        old: the text that may be repeated; it may grow.
        place: its token that the text's next one is expected to be.
        read: number of tokens of the text.

    Attributes:
        old: as given.
        kept: number of old tokens that the text has repeated since then.
        replaced: what stands in the text for old tokens.
    """

    def __init__(self, old: Sequence[int], place: int, read: int) -> None:
        self.old = old
        self.kept = 0
        self.replaced: dict[tuple[int, ...], list[int]] = {}
        self._place, self._read = place, read  # the next old token, and tokens of the text, as far as both agree
        self._since = place  # from which old token on

    def follow(self, text: Sequence[int], count: int) -> tuple[list[int], int]:
        """Up to ``count`` tokens that may come next, and how many tokens before them agree; ``MAX_AGREED`` if all do.

        Args:
            text: that of the previous call, possibly with more tokens at its end.
        """
        self._advance(text)
        place, agreed = self._place, MAX_AGREED
        if self._read < len(text):
            place, agreed = self._found(text)
            if agreed >= _SURE:
                self._settle(text, place, agreed)
        return self._next(place, count), agreed

    def _advance(self, text: Sequence[int]) -> None:
        """Move on as far as the text repeats the old one."""
        old, began = self.old, self._place
        while self._read < len(text) and self._place < len(old) and text[self._read] == old[self._place]:
            self._read += 1
            self._place += 1
        self.kept += self._place - began
        if self.replaced:
            kept = old[max(self._since, began - _LONGEST) : self._place]
            for tokens in [one for one in self.replaced if _at(kept, one) >= 0]:
                del self.replaced[tokens]  # it stayed as it was

    def _found(self, text: Sequence[int]) -> tuple[int, int]:
        """The likeliest place of a text that has parted from the old one, and how many tokens agree before it."""
        new = min(len(text) - self._read, _AHEAD)  # the search takes as long in a long text as in a short one
        even = min(self._place + new, len(self.old))  # as many tokens as were replaced
        best = even, 0
        for end in range(self._place + 1, min(even + _AHEAD, len(self.old)) + 1):
            if self.old[end - 1] == text[-1]:
                agreed = self._agreed(text, end)
                if (agreed, -abs(end - even)) > (best[1], -abs(best[0] - even)):
                    best = end, agreed
        return best

    def _agreed(self, text: Sequence[int], end: int) -> int:
        size, most = 1, min(len(text) - self._read, end - self._place)
        while size < most and self.old[end - 1 - size] == text[len(text) - 1 - size]:
            size += 1
        return size

    def _settle(self, text: Sequence[int], place: int, agreed: int) -> None:
        """Go on from a place that is found, and remember what was replaced before it."""
        old, new = self.old[self._place : place - agreed], list(text[self._read : len(text) - agreed])
        if old and new and max(len(old), len(new)) <= _LONGEST:
            self.replaced[tuple(old)] = new
        self._place, self._read, self._since = place, len(text), place - agreed
        self.kept += agreed

    def _next(self, place: int, count: int) -> list[int]:
        found = list(self.old[place : place + count + _LONGEST])
        for old, new in self.replaced.items():
            begin = 0
            while (at := _at(found, old, begin)) >= 0:
                found[at : at + len(old)] = new
                begin = at + len(new)
        return found[:count]


def _at(tokens: Sequence[int], part: Sequence[int], begin: int = 0) -> int:
    """Where ``part`` first stands among tokens; -1 if nowhere."""
    size = len(part)
    return next((i for i in range(begin, len(tokens) - size + 1) if tuple(tokens[i : i + size]) == tuple(part)), -1)
