"""Texts that have ended, and where the ending of a new one stands in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import numpy as np

from draftwood.core.errors import ConfigError

SIZES: Final = (4, 8, 16, 32)
"""Tokens of the n-grams that are looked up. The longest reaches from the end of a chat's prompt into what was asked."""
_LONGEST: Final = SIZES[-1]
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
        rng = np.random.default_rng(0)
        self._factors = rng.integers(1 << 63, size=(len(SIZES), _LONGEST), dtype=np.uint64)
        for factors, size in zip(self._factors, SIZES, strict=True):
            factors[:-size] = 0
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
        for table, factors, size in zip(self._tables, self._factors, SIZES, strict=True):
            if len(new) > size:
                grams = np.lib.stride_tricks.sliding_window_view(new[:-1].astype(np.uint64), size)
                table[self._slots(grams @ factors[-size:], number)] = np.arange(begin + size, end, dtype=np.int32)

    def find(self, ending: Sequence[int], owner: str) -> tuple[int, int]:
        """Where the end of a text stands in a text of its owner, as long an end as is known.

        Returns the place behind it, and how many tokens agree, 32 at most; (0, 0) if fewer than four do.
        """
        if (number := self._numbers.get(owner)) is None:
            return 0, 0
        last = ending[-_LONGEST:]
        wanted = np.full(_LONGEST, -1, np.int32)
        wanted[_LONGEST - len(last) :] = last
        wanted += 1
        slots = self._slots(self._factors @ wanted.astype(np.uint64), number)
        best = 0, 0
        for place in dict.fromkeys(self._tables[range(len(SIZES)), slots].tolist()):
            if place and self._owners[place - 1] == number:
                most = min(place, len(last))
                other = np.flatnonzero(self._tokens[place - most : place] != wanted[_LONGEST - most :])
                agreed = most - 1 - int(other[-1]) if len(other) else most
                if agreed >= max(SIZES[0], best[1]):
                    best = place, agreed
        return best

    def after(self, place: int, count: int) -> list[int]:
        """Up to ``count`` tokens of a text from a place on, which :meth:`find` has found since a text was added."""
        found: list[int] = (self._tokens[place : place + count] - 1).tolist()
        return found[: found.index(_END - 1)] if _END - 1 in found else found

    def _slots(self, sums: np.ndarray, number: int) -> np.ndarray:
        """The places of n-grams in a table."""
        mixed = (sums + np.uint64(number)) * np.uint64(0x9E3779B97F4A7C15)
        found: np.ndarray = mixed >> np.uint64(65 - self._room.bit_length())
        return found
