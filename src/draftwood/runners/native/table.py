"""The rows of a runner in the native engine, and their memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from draftwood.runners.native.network import Engine, Memory
from draftwood.runners.protocols import Prefix
from draftwood.runners.rows import RowList, remaining
from draftwood.sampling.rows import Row


@final
class MemoryTable:
    """Rows and their memories, which change as those of a :class:`draftwood.runners.slots.SlotTable`.

    Args:
        engine: makes memories.

    Attributes:
        memories: of the rows, in order.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._list = RowList()
        self.memories: list[Memory] = []
        self._begun = False  # the present round

    @property
    def rows(self) -> list[Row]:
        """The present rows, in order."""
        return self._list.rows

    def clear(self, *, keep: bool = False) -> None:
        """Remove all rows. ``keep`` leaves the memory of a single row for the next one."""
        self._end_round()
        if not self._list.clear(keep=keep):
            self.memories = []

    def _end_round(self) -> None:
        if self._begun:
            for memory in self.memories:
                memory.cut(len(memory))
        self._begun = False

    def set_rows(self, rows: Sequence[Row]) -> None:
        """As :meth:`draftwood.runners.protocols.Runner.set_rows`."""
        self._end_round()
        with self._list.changing(rows) as (gone, new, shared):
            self.memories = remaining(self.memories, gone)
            if shared:  # the memory of an earlier text was kept
                self.memories[0].cut(shared)
                new = 0
            elif shared is not None:
                self.memories = []
            self.memories += [self._engine.row() for _ in range(new)]

    def begin(self, row: Row, other: MemoryTable, prefix: Prefix | None) -> None:
        """Replace all rows by one, which shares what another table holds of its beginning."""
        self.clear()
        with self._list.changing([row]):
            if prefix is not None and prefix.row in other.rows:
                source = other.memories[other.rows.index(prefix.row)]
                self.memories = [source.fork(min(prefix.length, len(source)))]
            else:
                self.memories = [self._engine.row()]

    def join(self, other: MemoryTable) -> None:
        """Append the only row of another table, which is then empty."""
        if not self.rows:
            self.clear()
        with self._list.changing([*self.rows, *other.rows]):
            self.memories += other.memories
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
