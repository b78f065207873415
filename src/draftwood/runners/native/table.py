"""The rows of a runner in the native engine, and their memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final
from weakref import WeakKeyDictionary

from draftwood.runners.native.network import Engine, RowMemory
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
        self.memories: list[RowMemory] = []
        self._kept: WeakKeyDictionary[Row, RowMemory] = WeakKeyDictionary()
        self._coming: tuple[Row, RowMemory] | None = None  # a row that is in no round yet
        self._begun = False  # the present round

    def clear(self) -> None:
        """Remove all rows."""
        self.rows, self.memories, self._coming, self._begun = [], [], None, False

    def _end_round(self) -> None:
        if self._begun:
            for memory in self.memories:
                memory.cut(len(memory))
        self._begun = False

    def set_rows(self, rows: Sequence[Row]) -> None:
        """As :meth:`draftwood.runners.protocols.Runner.set_rows`."""
        self._end_round()
        gone, new = changes(self.rows, rows)
        if len(new) == 1 and self._coming is not None and self._coming[0] is new[0]:
            joining = [self._coming[1]]
        else:
            joining = [self._engine.row() for _ in new]
        self._coming = None if new else self._coming
        self.rows, self.memories = list(rows), [*remaining(self.memories, gone), *joining]

    def memory_of(self, row: Row) -> RowMemory | None:
        """The memory of a present row, of one that comes later, or of a text that was kept; None of any other."""
        if self._coming is not None and row is self._coming[0]:
            return self._coming[1]
        return self.memories[self.rows.index(row)] if row in self.rows else self._kept.get(row)

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
        self._kept[text] = memory.fork(len(memory))

    def begin(self, row: Row, prefix: Prefix | None) -> RowMemory:
        """The memory of a row that comes later; a new one shares what is known of its beginning."""
        if self._coming is None or row is not self._coming[0]:
            source = None if prefix is None else self.memory_of(prefix.row)
            if prefix is None or source is None:
                self._coming = row, self._engine.row()
            else:
                self._coming = row, source.fork(min(prefix.length, len(source)))
        return self._coming[1]

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
