"""The beginning of a text that is read alongside the rows of a slot table, until it becomes one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from jaxtyping import Float
from torch import Tensor

from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.protocols import Prefix
from draftwood.runners.slots import SlotTable

Forward: TypeAlias = Callable[[ForwardBatch], ForwardOutput]


@final
class Prefill:
    """One text that is read in parts, in a cache of its own, as :meth:`draftwood.runners.protocols.Runner.prefill` says.

    Args:
        rows: the table that the text joins.
        reader: makes a table with another cache for the same model, and its forward.
    """

    def __init__(self, rows: SlotTable, reader: Callable[[], tuple[SlotTable, Forward]]) -> None:
        self._rows = rows
        self._reader = reader
        self._made: tuple[SlotTable, Forward] | None = None
        self._text: list[int] = []  # what was read

    def clear(self, *, keep: bool = False) -> None:
        """Forget the text, unless it is kept."""
        if self._made is not None and not keep:
            self._text = []
            self._made[0].clear()

    def read(self, text: Sequence[int], prefix: Prefix | None) -> Float[Tensor, "_token width"] | None:
        """Read up to the end of ``text``; returns the hidden states of the tokens that were read and not copied."""
        if self._made is None:
            self._made = self._reader()
        table, forward = self._made
        if not self._text or list(text[: len(self._text)]) != self._text:
            table.clear()
            if prefix is None:
                table.add([[]])
            self._text = [] if prefix is None else list(text[: table.begin(self._rows, *prefix)])
        table.commit([[]], [text[len(self._text) :]])
        outputs = [forward(batch) for batch in table.pending_batches()]
        read = table.scores(outputs, 0).read if outputs else None
        table.commit([[]], [[]])
        self._text = list(text)
        return None if read is None else read[0]

    def add(self, texts: Sequence[Sequence[int]]) -> None:
        """Append rows to the table, the text that was read as what it is."""
        read = len(self._text)
        if self._made is None or not read or len(texts) != 1 or list(texts[0][:read]) != self._text:
            self._rows.add(texts)
            return
        self._rows.join(self._made[0], texts[0][read:])
        self._text = []
