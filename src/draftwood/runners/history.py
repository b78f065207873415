"""The tokens in the cache of a single row, to compare them with a later text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from draftwood.runners.rows import common_length


@final
class History:
    """The tokens that a cache holds of one row, in order. They leave the device only when they are compared."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._rounds: list[tuple[Sequence[int], Sequence[Tensor], Sequence[int]]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def clear(self) -> None:
        """Forget all tokens."""
        self._tokens, self._rounds, self._length = [], [], 0

    def append(self, pending: Sequence[int], nodes: Sequence[Tensor], kept: Sequence[int]) -> None:
        """Append the tokens of a round: those that were pending, then the kept nodes.

        Args:
            nodes: the tokens of all nodes of the round, [1, node] each.
            kept: numbers of the nodes that joined the text.
        """
        self._rounds.append((pending, nodes, kept))
        self._length += len(pending) + len(kept)

    def cut(self, texts: Sequence[Sequence[int]]) -> int:
        """Keep the common beginning with a single text, or nothing if there are several; returns its length."""
        for pending, nodes, kept in self._rounds:
            row = torch.cat(list(nodes), dim=1)[0].tolist()  # host sync
            self._tokens += [*pending, *(row[node] for node in kept)]
        self._length = common_length(self._tokens, texts[0]) if len(texts) == 1 else 0
        self._tokens, self._rounds = self._tokens[: self._length], []
        return self._length
