"""The lengths of the rows' texts, and the tokens of a single one, to compare it with a later text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.runners.history import History
from draftwood.runners.rows import remaining

_NO_NODES = (torch.zeros(1, 0, dtype=torch.long),)


@final
class RowTexts:
    """The texts of a runner whose memory holds every committed token.

    Attributes:
        ends: lengths of the texts, without their roots.
    """

    def __init__(self) -> None:
        self.ends: list[int] = []
        self._history = History()  # of a single row
        self._nodes: list[Tensor] = []  # tokens of this round's nodes

    def clear(self, *, keep: bool) -> bool:
        """Remove all rows; returns whether the text of a single one is kept for :meth:`add`."""
        if not keep or len(self.ends) != 1 or self._nodes:
            self._history.clear()
        self.ends, self._nodes = [], []
        return len(self._history) > 0

    def add(self, texts: Sequence[Sequence[int]]) -> int:
        """Append rows; returns the length of the beginning that a single one shares with a kept text."""
        kept = self._history.cut(texts) if self._history and not self.ends else 0
        if not self.ends and len(texts) == 1:
            self._history.append(texts[0][kept:], _NO_NODES, ())
        else:
            self._history.clear()
        self.ends += map(len, texts)
        return kept

    def extend(self, tokens: Int[Tensor, "row node"]) -> None:
        """Note the tokens of new nodes."""
        self._nodes.append(tokens)

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        """End the round: append nodes, then tokens that were no nodes."""
        if self._history:
            self._history.append((), self._nodes or _NO_NODES, nodes[0])
            self._history.append(pending[0], _NO_NODES, ())
        self.ends = [end + len(kept) + len(rest) for end, kept, rest in zip(self.ends, nodes, pending, strict=True)]
        self._nodes = []

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""
        self.ends = remaining(self.ends, rows)
        self._history.clear()
