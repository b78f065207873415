"""The rows of a runner in the native engine, and their memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final
from weakref import WeakKeyDictionary

from draftwood.runners.native.network import Engine, Memory
from draftwood.runners.protocols import Prefix
from draftwood.runners.rows import changes, remaining
from draftwood.sampling.rows import Row


@final
class MemoryTable:
    """Rows and their memories, which change as those of a :class:`draftwood.runners.slots.SlotTable`.

    Args:
        engine: makes memories.

    Attributes:
        rows: the present rows, in order.
        memories: of the rows.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows: list[Row] = []
        self.memories: list[Memory] = []
        self._kept: WeakKeyDictionary[Row, Memory] = WeakKeyDictionary()
        self._begun = False  # the present round

    def clear(self) -> None:
        """Remove all rows."""
        self.rows, self.memories, self._begun = [], [], False

    def _end_round(self) -> None:
        if self._begun:
            for memory in self.memories:
                memory.cut(len(memory))
        self._begun = False

    def set_rows(self, rows: Sequence[Row]) -> None:
        """As :meth:`draftwood.runners.protocols.Runner.set_rows`."""
        self._end_round()
        gone, new = changes(self.rows, rows)
        self.memories = [*remaining(self.memories, gone), *(self._engine.row() for _ in new)]
        self.rows = list(rows)

    def memory_of(self, row: Row) -> Memory | None:
        """The memory of a present row, or of a text that was kept; None of any other."""
        return self.memories[self.rows.index(row)] if row in self.rows else self._kept.get(row)

    def held(self, row: Row) -> int:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.held`."""
        memory = self.memory_of(row)
        return 0 if memory is None else len(memory)

    def keep(self, row: Row, text: Row) -> None:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.keep`; full pages are shared."""
        memory = self.memories[self.rows.index(row)]
        self._kept[text] = memory.fork(len(memory))

    def begin(self, row: Row, other: MemoryTable, prefix: Prefix | None) -> None:
        """Replace all rows by one, which shares what another table holds of its beginning."""
        self.clear()
        source = None if prefix is None else other.memory_of(prefix.row)
        if prefix is None or source is None:
            self.memories = [self._engine.row()]
        else:
            self.memories = [source.fork(min(prefix.length, len(source)))]
        self.rows = [row]

    def join(self, other: MemoryTable) -> None:
        """Append the only row of another table, which is then empty."""
        if not self.rows:
            self.clear()
        self.rows, self.memories = [*self.rows, *other.rows], [*self.memories, *other.memories]
        other.clear()

    def pending(self, end: int = -1) -> list[list[int]]:
        """What the memories lack of the rows' tokens before index ``end``, read next: a round begins, or goes on."""
        self._begun = True  # first: an interrupted call may have read nodes
        return [row.tokens[len(memory) : end] for row, memory in zip(self.rows, self.memories, strict=True)]

    def commit(self, nodes: Sequence[Sequence[int]]) -> None:
        """End the round: per row, the text has the tokens of these nodes next, in this order."""
        if self._begun:  # else nothing was read
            for memory, kept in zip(self.memories, nodes, strict=True):
                memory.commit(kept)
        self._begun = False
