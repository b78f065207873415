"""Texts that have ended, and where the ending of a new one stands in them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Final, final

import numpy as np

from draftwood.core.errors import ConfigError

SIZES: Final = (4, 8, 16, 32)
"""Tokens of the n-grams that are looked up. The longest reaches from the end of a chat's prompt into the question."""
_LONGEST: Final = SIZES[-1]
_MIX: Final = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
_MASK: Final = (1 << 64) - 1
_END: Final = 0  # of a text; a token is stored as its number plus 1


@final
class History:
    """Texts that have ended; the oldest go first.

    For each size of n-grams a table keeps, by their hash, the place behind the latest one. What stands there is compared,
    and so is whose it is: a collision, or an n-gram that has gone, may cost a match and never gives a wrong one. So nothing
    is searched or rebuilt, however many texts there are. SuffixDecoding (arXiv 2411.04975) drafts from earlier texts too.

    Args:
        tokens: the most tokens of all texts, rounded up to a power of two. One takes 24 bytes.

    Raises:
        ConfigError: room for fewer than 64 tokens.
    """

    def __init__(self, tokens: int = 1 << 20) -> None:
        if tokens < 2 * _LONGEST:
            raise ConfigError(f"a history has room for {tokens} tokens: give {2 * _LONGEST} or more")
        self._room = 1 << (tokens - 1).bit_length()
        self._factors = np.random.default_rng(0).integers(1 << 63, size=_LONGEST, dtype=np.uint64)
        self._python_factors: list[int] = self._factors.tolist()
        self._shift = 65 - self._room.bit_length()
        self.clear()

    def clear(self) -> None:
        """Forget all texts and free their memory."""
        self._tokens, self._owners = np.zeros((2, self._room), np.int32)
        self._tables = np.zeros((len(SIZES), self._room), np.int32)
        self._numbers: dict[str, int] = {}
        self._begin = self._end = 0  # of the last text

    def add(self, text: Sequence[int], owner: str) -> None:
        """Keep a text, or the end of one that is longer than half of the room. If the last text begins it, that one goes.

        Args:
            text: token ids of prompt and answer.
            owner: for whom it is found.
        """
        new, number = 1 + np.array(text[-self._room // 2 :], np.int32), self._numbers.setdefault(owner, len(self._numbers))
        last = self._tokens[self._begin : self._end]
        goes_on = self._owners[self._begin] == number and np.array_equal(new[: len(last)], last)
        begin = self._begin if goes_on else self._end + 1
        if begin + len(new) >= self._room:
            begin = 0
        self._begin, self._end = begin, (end := begin + len(new))
        self._tokens[begin:end], self._tokens[end], self._owners[begin:end] = new, _END, number
        for table, size in zip(self._tables, SIZES, strict=True):
            if len(new) > size:
                sums = np.lib.stride_tricks.sliding_window_view(new[:-1].astype(np.uint64), size) @ self._factors[-size:]
                slots = (sums + np.uint64(number)) * np.uint64(_MIX) >> np.uint64(self._shift)
                table[slots] = np.arange(begin + size, end, dtype=np.int32)

    def find(self, ending: Sequence[int], owner: str) -> tuple[int, int]:
        """Where the end of a text stands in a text of its owner, as long an end as is known.

        Returns the place behind it, and how many tokens agree, 32 at most; (0, 0) if fewer than four do.
        """
        if (number := self._numbers.get(owner)) is None:
            return 0, 0
        last, factors = [token + 1 for token in ending[-_LONGEST:]], self._python_factors
        found = 0
        for table, size in zip(self._tables, SIZES, strict=True):
            if size > len(last):
                break
            mixed = (sum(map(mul, factors[-size:], last[-size:])) + number) * _MIX & _MASK
            place = table.item(mixed >> self._shift)
            if place and self._owners.item(place - 1) == number and self._at(place, size) == last[-size:]:
                found = place
        if not found:
            return 0, 0
        agreed, known = 0, self._at(found, min(found, len(last)))
        while agreed < len(known) and known[-1 - agreed] == last[-1 - agreed]:
            agreed += 1
        return found, agreed

    def _at(self, place: int, size: int) -> list[int]:
        """What is stored before a place."""
        found: list[int] = self._tokens[place - size : place].tolist()
        return found

    def after(self, place: int, count: int) -> list[int]:
        """Up to ``count`` tokens of a text from a place on, which :meth:`find` has found since a text was added."""
        found: list[int] = (self._tokens[place : place + count] - 1).tolist()
        return found[: found.index(_END - 1)] if _END - 1 in found else found
