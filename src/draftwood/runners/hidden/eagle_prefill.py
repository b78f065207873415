"""What an EAGLE-3 drafter reads of a text alongside its rows, until the text becomes one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.runners.cache import TreeCache
from draftwood.runners.hidden.eagle import Eagle3Drafter, EaglePass
from draftwood.runners.hidden.eagle_text import EagleText
from draftwood.runners.protocols import Prefix
from draftwood.runners.slots import SlotTable


@final
class EaglePrefill:
    """One text and its entries, in a cache of their own.

    Args:
        drafter: the drafter.
        network: its pass.
        slots: the table that the text joins.
    """

    def __init__(self, drafter: Eagle3Drafter, network: EaglePass, slots: SlotTable) -> None:
        self._drafter, self._network, self._rows = drafter, network, slots
        self._cache = TreeCache(drafter.config.num_hidden_layers)
        self._slots = slots.another(self._cache)
        self._text: EagleText | None = None

    def clear(self) -> None:
        """Forget the text."""
        self._text = None
        self._slots.clear()

    def read(
        self,
        text: Sequence[int],
        hidden: Float[Tensor, "_token width"] | None,
        texts: Sequence[EagleText],
        prefix: Prefix | None,
    ) -> None:
        """Read the hidden states of the last tokens of ``text``; ``texts`` are the rows, one of which may be copied."""
        row = self._text
        if row is None or list(text[: len(row.text)]) != row.text:
            row = self._begin(EagleText([]) if prefix is None else texts[prefix.row].copied(text[: prefix.length]), prefix)
        row.text = list(text)
        if hidden is not None and len(hidden):
            if row.misses(len(hidden)):
                row.begin(len(text) - len(hidden))
                self._begin(row, None)
            self._slots.commit([[]], [row.read(hidden, root_kept=False)])
        self._read_waiting(row)

    def _begin(self, row: EagleText, prefix: Prefix | None) -> EagleText:
        self._text = row
        self._slots.clear()
        if prefix is None:
            self._slots.add([[]])
            return row
        waiting = sum(map(len, row.waiting))
        self._slots.begin(self._rows, prefix.row, max(0, len(row.entries) - waiting))
        self._slots.commit([[]], [row.entries[len(row.entries) - waiting :]])
        return row

    def _read_waiting(self, row: EagleText) -> None:
        if not row.waiting:
            return
        features, done = self._drafter.features(torch.cat(row.waiting).to(self._drafter.dtype).unsqueeze(0)), 0
        for batch in self._slots.pending_batches():
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
        row.waiting = []
        self._slots.commit([[]], [[]])

    def join(self, texts: Sequence[Sequence[int]]) -> EagleText | None:
        """Append the text's entries to the table's rows if it is the beginning of this single one; None otherwise."""
        row = self._text
        if row is None or len(texts) != 1 or list(texts[0][: len(row.text)]) != row.text:
            return None
        row.text, row.fresh, self._text = list(texts[0]), True, None
        self._rows.join(self._slots, [])
        return row
