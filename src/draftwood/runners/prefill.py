"""The beginning of a row that is read alongside the rows of a slot table, until it becomes one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from jaxtyping import Float
from torch import Tensor

from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.protocols import Prefix
from draftwood.runners.slots import SlotTable
from draftwood.sampling.rows import Row

Forward: TypeAlias = Callable[[ForwardBatch], ForwardOutput]


@final
class Prefill:
    """One row that is read in parts, in a cache of its own, as :meth:`draftwood.runners.protocols.Runner.prefill` says.

    Args:
        table: the table that the row joins.
        reader: makes a table with another cache for the same model, and its forward.
    """

    def __init__(self, table: SlotTable, reader: Callable[[], tuple[SlotTable, Forward]]) -> None:
        self._table = table
        self._reader = reader
        self._made: tuple[SlotTable, Forward] | None = None

    def clear(self) -> None:
        """Remove all rows of the table, and forget the row that is read."""
        self._table.clear()
        if self._made is not None:
            self._made[0].clear()

    def read(self, row: Row, end: int, prefix: Prefix | None) -> Float[Tensor, "_token width"] | None:
        """Read the first ``end`` tokens; returns the hidden states of those that were read and not copied."""
        if self._made is None:
            self._made = self._reader()
        table, forward = self._made
        if row not in table.rows:
            table.begin(row, self._table, prefix)
        outputs = [forward(batch) for batch in table.batches_to(end)]
        read = table.scores(outputs, 0).read if outputs else None
        table.commit([[]])
        return None if read is None else read[0]

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Replace the rows of the table; the row that was read joins as what it is."""
        if self._made is None or not rows or not self._made[0].cached(rows[-1]):
            self._table.set_rows(rows)
            return
        self._table.set_rows(rows[:-1])
        self._table.join(self._made[0])
