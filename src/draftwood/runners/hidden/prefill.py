"""What a drafter of hidden states reads of a text alongside its rows, until the text becomes one of them."""

from __future__ import annotations

from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from draftwood.runners.hidden.text import HiddenText
from draftwood.runners.protocols import Prefix
from draftwood.sampling.rows import Row


@final
class HiddenPrefill:
    """One text and its entries, in a table of their own.

    Args:
        passes: the passes, whose table the text joins.
    """

    def __init__(self, passes: Any) -> None:
        self._rows, self._passes = passes.table, passes.another()
        self._entries = self._passes.table
        self._text: HiddenText | None = None

    def clear(self) -> None:
        """Forget the text."""
        self._text = None
        self._entries.clear()

    @property
    def unread_bytes(self) -> int:
        """Bytes of the hidden states that wait."""
        return 0 if self._text is None else sum(part.nbytes for part in self._text.waiting)

    def begin(self, row: Row, source: HiddenText | None, length: int) -> None:
        """Begin a row, if it is another one, with what is known of the ``length`` tokens that it shares with ``source``."""
        if self.reads(row):
            return
        self._text = HiddenText(row, self._passes.shift) if source is None else source.for_row(row, length)
        prefix = None if source is None else Prefix(source.entries, self._text.cached)
        self._entries.begin(self._text.entries, self._rows, prefix)

    def read(self, hidden: Float[Tensor, "_token width"], end: int, *, now: bool) -> None:
        """Take the hidden states of the last of the text's first ``end`` tokens; read them now, or when it has joined."""
        text = self._text
        assert text is not None
        gap = end - len(hidden) > text.known
        text.read(hidden, end)
        if gap:
            self._entries.begin(text.entries, self._rows, None)
        if now and text.waiting:
            self._passes.read(text)

    def reads(self, row: Row) -> bool:
        """Whether this row is the one that is read."""
        return self._text is not None and self._text.row is row

    def join(self) -> HiddenText:
        """Append the text's entries to the table's rows."""
        text, self._text = self._text, None
        assert text is not None
        text.fresh = True
        self._rows.join(self._entries)
        return text
