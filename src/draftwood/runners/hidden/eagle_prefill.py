"""What an EAGLE-3 drafter reads of a text alongside its rows, until the text becomes one of them."""

from __future__ import annotations

from typing import TypeAlias, final

from jaxtyping import Float
from torch import Tensor

from draftwood.runners.hidden.eagle_native import NativePasses
from draftwood.runners.hidden.eagle_text import EagleText
from draftwood.runners.hidden.eagle_torch import TorchPasses
from draftwood.runners.protocols import Prefix
from draftwood.sampling.rows import Row

EaglePasses: TypeAlias = TorchPasses | NativePasses


@final
class EaglePrefill:
    """One text and its entries, in a table of their own.

    Args:
        passes: the passes, whose table the text joins.
    """

    def __init__(self, passes: EaglePasses) -> None:
        self._rows, self._passes = passes.table, passes.another()
        self._entries = self._passes.table
        self._text: EagleText | None = None

    def clear(self) -> None:
        """Forget the text."""
        self._text = None
        self._entries.clear()

    def read(
        self,
        row: Row,
        end: int,
        hidden: Float[Tensor, "_token width"] | None,
        source: EagleText | None,
        length: int,
    ) -> None:
        """Read the hidden states of the last of a row's first ``end`` tokens.

        At first, what is known of the ``length`` tokens that it shares with a present row, ``source``, is copied.
        """
        if self._text is None or self._text.row is not row:
            self._text = self._begun(row, source, length)
        text = self._text
        if hidden is not None and len(hidden):
            if (first := end - len(hidden)) > text.known:
                text.begin(first)
                self._entries.begin(text.entries, self._rows, None)
            text.read(hidden, end, root_kept=False)
        if text.waiting:
            self._passes.read(text)

    def _begun(self, row: Row, source: EagleText | None, length: int) -> EagleText:
        if source is None:
            text, prefix = EagleText(row), None
        else:
            text = source.for_row(row, length)
            cached = text.known - text.first - sum(map(len, text.waiting))
            prefix = Prefix(source.entries, max(0, cached))
        self._entries.begin(text.entries, self._rows, prefix)
        return text

    def reads(self, row: Row) -> bool:
        """Whether this row is the one that is read."""
        return self._text is not None and self._text.row is row

    def join(self) -> EagleText:
        """Append the text's entries to the table's rows."""
        text, self._text = self._text, None
        assert text is not None
        text.fresh = True
        self._rows.join(self._entries)
        return text
