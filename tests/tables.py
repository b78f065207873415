"""Toy models: a table of scores, indexed by the last tokens of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.draft_kind import CAUSAL, DraftKind
from draftwood.core.scores import Scores
from draftwood.runners.blocks.masked_block import ScoresByDepth
from draftwood.runners.protocols import ReadsAtOnce, Runner
from draftwood.sampling.rows import Row


@final
class TableRunner(ReadsAtOnce):
    """The runner of a Markov chain of order ``table.dim() - 1``.

    Args:
        table: scores ``[vocab] * order + [vocab]``; texts shorter than the order are padded with token 0 on the left.
    """

    kind = CAUSAL
    pads = True

    def __init__(self, table: Float[Tensor, "*context vocab"]) -> None:
        self.table = table
        self.vocab_size = table.shape[-1]
        self.max_length: int | None = None
        self.device = table.device
        self.forward_seconds = 0.0
        self.clear()

    def clear(self) -> None:
        self.set_rows([])

    def set_rows(self, rows: Sequence[Row]) -> None:
        self._rows = list(rows)
        self._nodes: list[list[int]] = [[] for _ in rows]

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
        out = []
        for row, nodes, masks in zip(self._rows, self._nodes, ancestors.tolist(), strict=True):
            paths = [[token for token, on in zip(nodes, seen, strict=True) if on] for seen in masks]
            out.append(torch.stack([self.scores(row.tokens[:-1] + path) for path in paths]))
        return Scores(torch.stack(out))

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Float[Tensor, "_token width"]] | None = None) -> None:
        self._nodes = [[] for _ in self._rows]


@final
class BlockTableRunner(ScoresByDepth):
    """A :class:`draftwood.runners.protocols.BlockRunner` whose block depends on the root alone.

    Args:
        table: scores after each token, at each depth of the block.
    """

    kind = DraftKind(name="table", scores_block=True)
    pads = True

    def __init__(self, table: Float[Tensor, "token depth vocab"]) -> None:
        self.table = table
        self.block = int(table.shape[1])
        self.vocab_size = int(table.shape[2])
        self.max_length: int | None = None
        self.device = table.device
        self.forward_seconds = 0.0
        self.clear()

    def set_rows(self, rows: Sequence[Row]) -> None:
        self._rows = list(rows)

    def score_block(self) -> Float[Tensor, "row block vocab"]:
        return self.table[[row.tokens[-1] for row in self._rows]]

    def longer(self, block: int) -> BlockTableRunner:
        found = BlockTableRunner(self.table[:, :block])
        found.block = min(block, self.block)
        return found


def toy(block: int = 0) -> Runner:
    """A model with one token, to validate settings; a draft model of blocks of this length if it is not 0."""
    return BlockTableRunner(torch.zeros(1, block, 1)) if block else TableRunner(torch.zeros(1))
