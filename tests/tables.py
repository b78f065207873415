"""Toy models: a table of scores, indexed by the last tokens of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.scores import Scores
from draftwood.runners.blocks.block_round import BlockRound
from draftwood.runners.protocols import ReadsAtOnce, Runner
from draftwood.runners.rows import remaining_rows


@final
class TableRunner(ReadsAtOnce):
    """The runner of a Markov chain of order ``table.dim() - 1``.

    Args:
        table: scores ``[vocab] * order + [vocab]``; texts shorter than the order are padded with token 0 on the left.
    """

    reads_source = False
    pads = True

    def __init__(self, table: Float[Tensor, "*context vocab"]) -> None:
        self.table = table
        self.vocab_size = table.shape[-1]
        self.max_length: int | None = None
        self.device = table.device
        self.forward_seconds = 0.0
        self._texts: list[list[int]] = []
        self._nodes: list[list[int]] = []

    def clear(self, *, keep: bool = False) -> None:
        self._texts, self._nodes = [], []

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._texts += [list(text) for text in texts]
        self._nodes += [[] for _ in texts]

    def scores(self, text: Sequence[int]) -> Float[Tensor, "vocab"]:
        """Scores after ``text``."""
        order = self.table.dim() - 1
        context = ([0] * order + list(text))[-order:] if order else []
        return self.table[tuple(context)]

    def extend(
        self, tokens: Int[Tensor, "row node"], depths: Int[Tensor, "row node"], ancestors: Bool[Tensor, "row node seen"]
    ) -> Scores:
        for nodes, new in zip(self._nodes, tokens.tolist(), strict=True):
            nodes.extend(new)
        # Ancestors precede descendants, so a mask row lists its path in order.
        out = [
            torch.stack([self.scores(text + [t for t, on in zip(nodes, row, strict=True) if on]) for row in rows])
            for text, nodes, rows in zip(self._texts, self._nodes, ancestors.tolist(), strict=True)
        ]
        return Scores(torch.stack(out))

    def commit(
        self,
        nodes: Sequence[Sequence[int]],
        pending: Sequence[Sequence[int]],
        hidden: Sequence[Float[Tensor, "_token width"]] | None = None,
    ) -> None:
        for text, seen, kept, rest in zip(self._texts, self._nodes, nodes, pending, strict=True):
            text.extend([seen[n] for n in kept] + list(rest))
            seen.clear()

    def drop(self, rows: Sequence[int]) -> None:
        stay = remaining_rows(len(self._texts), rows)
        self._texts = [self._texts[r] for r in stay]
        self._nodes = [[] for _ in stay]


@final
class BlockTableRunner(ReadsAtOnce):
    """A :class:`draftwood.runners.protocols.BlockRunner` whose block depends on the root alone.

    Args:
        table: scores after each token, at each depth of the block.
    """

    reads_source = False
    pads = True

    def __init__(self, table: Float[Tensor, "token depth vocab"]) -> None:
        self.table = table
        self.block = int(table.shape[1])
        self.vocab_size = int(table.shape[2])
        self.max_length: int | None = None
        self.device = table.device
        self.forward_seconds = 0.0
        self._round = BlockRound()

    def clear(self, *, keep: bool = False) -> None:
        self._round.clear()

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """The scores depend on the root alone."""

    def score_block(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        self._round.begin(root, count, self.block)
        return self.table[root, :count]

    def extend(
        self, tokens: Int[Tensor, "row node"], depths: Int[Tensor, "row node"], ancestors: Bool[Tensor, "row node seen"]
    ) -> Scores:
        return self._round.scores_of(self, tokens, depths)

    def commit(
        self,
        nodes: Sequence[Sequence[int]],
        pending: Sequence[Sequence[int]],
        hidden: Sequence[Float[Tensor, "_token width"]] | None = None,
    ) -> None:
        self._round.end(nodes, pending)

    def drop(self, rows: Sequence[int]) -> None:
        """Nothing to drop."""


def toy(block: int = 0) -> Runner:
    """A model with one token, to validate settings; a draft model of blocks of this length if it is not 0."""
    return BlockTableRunner(torch.zeros(1, block, 1)) if block else TableRunner(torch.zeros(1))
