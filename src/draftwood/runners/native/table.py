"""The rows of a runner in the native engine, and their memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from draftwood.runners.native.memory import RowMemory
from draftwood.runners.native.network import Engine
from draftwood.runners.protocols import Prefix
from draftwood.runners.rows import RowTable
from draftwood.sampling.rows import Row


@final
class MemoryTable:
    """Rows and their memories, which change as those of a :class:`draftwood.runners.slots.SlotTable`.

    Args:
        engine: makes memories.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._table: RowTable[RowMemory] = RowTable()
        self._begun = False  # the present round

    @property
    def rows(self) -> list[Row]:
        """The present rows, in order."""
        return self._table.rows

    @property
    def memories(self) -> list[RowMemory]:
        """The memories of the rows."""
        return self._table.parts

    def clear(self) -> None:
        """Remove all rows."""
        self._table.clear()
        self._begun = False

    def _end_round(self) -> None:
        if self._begun:
            for memory in self.memories:
                memory.cut(len(memory))
        self._begun = False

    def set_rows(self, rows: Sequence[Row]) -> None:
        """As :meth:`draftwood.runners.protocols.Runner.set_rows`."""
        self._end_round()
        self._table.set_rows(rows, lambda _: self._engine.row())

    def memory_of(self, row: Row) -> RowMemory | None:
        """The memory of a present row, of one that comes later, or of a text that was kept; None of any other."""
        read = self._table.part_read(row)
        return self._table.of(row) if read is None else read

    def held(self, row: Row) -> int:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.held`."""
        memory = self.memory_of(row)
        return 0 if memory is None else len(memory)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the memories of all rows and kept texts, also of other tables of the engine."""
        return self._engine.memory_bytes

    def keep(self, row: Row, text: Row) -> None:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.keep`; full pages are shared."""
        memory = self.memories[self.rows.index(row)]
        self._table.kept[text] = memory.fork(len(memory))

    def restore(self, text: Row, length: int) -> RowMemory:
        """As :meth:`draftwood.runners.stored_texts.StoresTexts.restore`."""
        memory = self._engine.row()
        memory.restore(length)
        self._table.kept[text] = memory
        return memory

    def thin_marks(self) -> bool:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.thin_marks`."""
        coming = [] if self._table.coming is None else [self._table.coming[1]]
        return any([memory.thin_marks() for memory in (*self.memories, *coming)])

    def cut(self, row: Row, length: int) -> None:
        """As :meth:`draftwood.runners.slots.SlotTable.cut`; with running states less may be left."""
        index = self.rows.index(row)
        if length < len(memory := self.memories[index]):
            self.memories[index] = memory.fork(length)

    def begin(self, row: Row, prefix: Prefix | None) -> RowMemory:
        """The memory of a row that comes later; a new one shares what is known of its beginning."""
        if (found := self._table.part_read(row)) is None:
            source = None if prefix is None else self.memory_of(prefix.row)
            if prefix is not None and source is not None:
                found = source.fork(min(prefix.length, len(source)))
            else:
                found = self._engine.row()
            self._table.coming = row, found
        return found

    def pending(self) -> list[list[int]]:
        """What the memories lack of the rows' tokens before the roots, read next: a round begins, or goes on."""
        self._begun = True  # first: an interrupted call may have read nodes
        return [row.tokens[len(memory) : -1] for row, memory in zip(self.rows, self.memories, strict=True)]

    def commit(self, nodes: Sequence[Sequence[int]]) -> None:
        """End the round: per row, the text has the tokens of these nodes next, in this order."""
        if self._begun:  # else nothing was read
            for memory, kept in zip(self.memories, nodes, strict=True):
                memory.commit(kept)
        self._begun = False
