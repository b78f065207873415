"""The memory of a row of the native engine."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Final, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from draftwood.core.errors import CacheError, DraftwoodError
from draftwood.native.library import library
from draftwood.runners.protocols import KeepsTexts
from draftwood.sampling.rows import Row

PAGE: Final = 64
"""Tokens of a page of keys and values (``native/model.h``)."""
MARKS: Final = 8
"""Copies of a row's running states, at most."""


def succeed(result: int | None, error: type[DraftwoodError] = CacheError) -> int:
    """The result of a call; raises an error if it is negative or nothing, as where the call has failed."""
    if result is None or result < 0:
        raise error(f"the native engine: {library().error().decode()}")
    return result


@final
class RowMemory:
    """Keys, values and running states of a row of the engine with the handle ``engine``.

    Attributes:
        marks: copies of its beginnings, the shortest one first.
        regular: it is such a copy, at one of equal distances, and makes room for others.
    """

    def __init__(self, handle: int | None, engine: int) -> None:
        self.handle, self._engine = succeed(handle), engine
        self.marks: list[RowMemory] = []
        self.regular = False
        self._end = weakref.finalize(self, library().free_row, handle)

    def __len__(self) -> int:
        """Number of tokens of the text that it holds."""
        return int(library().length(self.handle))

    def fork(self, length: int) -> RowMemory:
        """A memory with the first ``length`` tokens of this one, or as many as it can :meth:`reach`."""
        marks = [mark for mark in self.marks if len(mark) <= length]
        source = self if not marks or library().reach(self.handle, length) == length else marks[-1]
        found = RowMemory(library().fork(source.handle, length if source is self else len(source)), self._engine)
        found.marks = marks
        return found

    def reach(self, length: int) -> int:
        """Of the first ``length`` tokens, those that a fork can share: not behind all of them are running states kept."""
        own = int(library().reach(self.handle, length))
        return max([own, *(len(mark) for mark in self.marks if len(mark) <= length)])

    @property
    def rereads(self) -> bool:
        """Whether the last token can be read again, without a mark."""
        return bool(library().reach(self.handle, len(self) - 1) == len(self) - 1)

    def mark(self, *, regular: bool) -> None:
        """Keep a copy of what there is, for later forks. Of more than :data:`MARKS` the one with the closest neighbours
        goes, a regular one if there is any."""
        if len(self) in (0, *map(len, self.marks)):
            return
        copy = self.fork(len(self))
        copy.marks, copy.regular = [], regular
        if copy.rereads:  # else it is of another row, before this one reads a token
            self.marks.append(copy)
        if len(self.marks) > MARKS:
            ends = [0, *map(len, self.marks)]
            del self.marks[min(range(MARKS), key=lambda i: (not self.marks[i].regular, ends[i + 2] - ends[i]))]

    def thin_marks(self) -> bool:
        """Free every second mark, the last one only if it is alone; False if there is none."""
        count = len(self.marks)
        self.marks = self.marks[(count - 1) % 2 :: 2] if count > 1 else []
        return count > 0

    def of(self, engine: int) -> int:
        """The handle, for a call of the engine with this one; raises a ValueError if the row is another one's."""
        if engine != self._engine:
            raise ValueError("a row of another model")
        return self.handle

    def cut(self, length: int) -> None:
        """Keep the first ``length`` tokens, and no node."""
        succeed(library().cut(self.handle, length))
        self.marks = [mark for mark in self.marks if len(mark) <= len(self)]

    def commit(self, nodes: Sequence[int]) -> None:
        """End the round: these nodes, in this order, become text."""
        succeed(library().commit(self.handle, (ctypes.c_int * len(nodes))(*nodes), len(nodes)))

    @property
    def parts(self) -> list[UInt8[np.ndarray, "_byte"]]:
        """The memory itself, which lives as long as this row: of running states, then pages of :data:`PAGE` tokens.

        Raises:
            CacheError: the last token cannot be read again, as it is where a text is taken from a file.
        """
        if not self.rereads:
            raise CacheError("the native engine: running states of the last token are not kept")
        found: list[UInt8[np.ndarray, "_byte"]] = []
        start = ctypes.c_void_p()
        while (size := library().part(self.handle, len(found), ctypes.byref(start))) >= 0:
            found.append(np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start.value or 0)))
        return found

    def restore(self, length: int) -> None:
        """Take so many tokens in place of none; what :attr:`parts` have of them is written next."""
        succeed(library().restore(self.handle, length))


@runtime_checkable
class StoresTexts(KeepsTexts, Protocol):
    """A runner whose memory of kept texts can be written to files and read by another one of the same weights.

    Attributes:
        shift: what is kept of a token is made of the text up to so many tokens behind it.
    """

    @property
    def shift(self) -> int: ...

    def memory_of(self, text: Row) -> RowMemory | None:
        """The memory of a kept text from its first token on; None where there is none."""

    def restore(self, text: Row, length: int) -> RowMemory:
        """Keep a memory of a text's first tokens, as :meth:`keep` does, whose parts the caller writes next.

        Raises:
            CacheError: there is no memory for it.
        """
