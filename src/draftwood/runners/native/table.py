"""The rows of a runner in the native engine, and their memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from draftwood.runners.native.memory import RowMemory
from draftwood.runners.native.network import Engine
from draftwood.runners.rows import RowTable
from draftwood.sampling.rows import Row


@final
class MemoryTable(RowTable[RowMemory]):
    """Rows and their memories, which change as those of a :class:`draftwood.runners.slots.SlotTable`.

    Args:
        engine: makes memories.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        super().__init__(lambda _: engine.row(), lambda source, _, length: source.fork(min(length, len(source))))

    def clear(self) -> None:
        super().clear()
        self._begun = False  # the present round

    def _end_round(self) -> None:
        if self._begun:
            for memory in self.parts:
                memory.cut(len(memory))
        self._begun = False

    def set_rows(self, rows: Sequence[Row]) -> tuple[list[int], list[Row]]:
        self._end_round()
        return super().set_rows(rows)

    def held(self, row: Row) -> int:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.held`."""
        memory = self.of(row)
        return 0 if memory is None else len(memory)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the memories of all rows and kept texts, also of other tables of the engine."""
        return self._engine.memory_bytes

    def keep(self, row: Row, text: Row) -> None:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.keep`; full pages are shared."""
        memory = self.parts[self.rows.index(row)]
        self.kept[text] = memory.fork(len(memory))

    def restore(self, text: Row, length: int) -> RowMemory:
        """As :meth:`draftwood.runners.native.memory.StoresTexts.restore`."""
        self.kept[text] = memory = self._engine.row()
        memory.restore(length)
        return memory

    def thin_marks(self) -> bool:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.thin_marks`."""
        coming = [] if self.coming is None else [self.coming[1]]
        return any([memory.thin_marks() for memory in (*self.parts, *coming)])

    def cut(self, row: Row, length: int) -> None:
        """As :meth:`draftwood.runners.slots.SlotTable.cut`; with running states less may be left."""
        index = self.rows.index(row)
        if length < len(memory := self.parts[index]):
            self.parts[index] = memory.fork(length)

    def pending(self) -> list[list[int]]:
        """What the memories lack of the rows' tokens before the roots, read next: a round begins, or goes on."""
        self._begun = True  # first: an interrupted call may have read nodes
        return [row.tokens[len(memory) : -1] for row, memory in zip(self.rows, self.parts, strict=True)]

    def commit(self, nodes: Sequence[Sequence[int]]) -> None:
        """End the round: per row, the text has the tokens of these nodes next, in this order."""
        if self._begun:  # else nothing was read
            for memory, kept in zip(self.parts, nodes, strict=True):
                memory.commit(kept)
        self._begun = False
