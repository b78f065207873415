"""What an EAGLE-3 drafter reads of a text alongside its rows, until the text becomes one of them."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.runners.cache import TreeCache
from draftwood.runners.hidden.eagle import Eagle3Drafter, EaglePass
from draftwood.runners.hidden.eagle_text import EagleText
from draftwood.runners.protocols import Prefix
from draftwood.runners.slots import SlotTable
from draftwood.sampling.rows import Row


@final
class EaglePrefill:
    """One text and its entries, in a cache of their own.

    Args:
        drafter: the drafter.
        network: its pass.
        slots: the table that the text joins.
    """

    def __init__(self, drafter: Eagle3Drafter, network: EaglePass, slots: SlotTable) -> None:
        self._drafter, self._network, self._table = drafter, network, slots
        self._cache = TreeCache(drafter.config.num_hidden_layers)
        self._slots = slots.another(self._cache)
        self._text: EagleText | None = None

    def clear(self) -> None:
        """Forget the text."""
        self._text = None
        self._slots.clear()

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
                self._slots.begin(text.entries, self._table, None)
            text.read(hidden, end, root_kept=False)
        self._read_waiting(text)

    def _begun(self, row: Row, source: EagleText | None, length: int) -> EagleText:
        if source is None:
            text, prefix = EagleText(row), None
        else:
            text = source.for_row(row, length)
            cached = text.known - text.first - sum(map(len, text.waiting))
            prefix = Prefix(source.entries, max(0, cached))
        self._slots.begin(text.entries, self._table, prefix)
        return text

    def _read_waiting(self, text: EagleText) -> None:
        if not text.waiting:
            return
        features, done = self._drafter.features(torch.cat(text.waiting).to(self._drafter.dtype).unsqueeze(0)), 0
        for batch in self._slots.batches_to(text.known - text.first):
            self._cache.place(batch)
            end = done + batch.tokens.shape[1]
            self._network(
                input_ids=batch.tokens,
                features=features[:, done:end],
                positions=batch.positions,
                cache=self._cache,
                mask=batch.mask,
            )
            done = end
        text.waiting = []
        self._slots.commit([[]])

    def reads(self, row: Row) -> bool:
        """Whether this row is the one that is read."""
        return self._text is not None and self._text.row is row

    def join(self) -> EagleText:
        """Append the text's entries to the table's rows."""
        text, self._text = self._text, None
        assert text is not None
        text.fresh = True
        self._table.join(self._slots)
        return text
