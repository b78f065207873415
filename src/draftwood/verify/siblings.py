"""The distributions ``Q_1, Q_2, ...`` from which the children of a node were drawn, for many nodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.tree import DraftTree


def log_probs_at(
    logp: Float[Tensor, "row node vocab"], rows: Sequence[int], nodes: Sequence[int]
) -> Float[Tensor, "asked vocab"]:
    """Probabilities at some nodes, one line each, in memory of their own."""
    if len(rows) == 1:
        return logp[rows[0], nodes[0]].unsqueeze(0).exp()
    index = torch.tensor([row * logp.shape[1] + node for row, node in zip(rows, nodes, strict=True)], device=logp.device)
    return logp.flatten(0, 1).index_select(0, index).exp_()


@final
class SiblingProbs:
    """The distributions of the children of some nodes, in draw order, each up to a factor.

    Attributes:
        left: ``Q_j`` times ``total``.
        total: its sum.
    """

    left: Float[Tensor, "asked vocab"]
    total: Float[Tensor, "asked 1"]

    def __init__(
        self, tree: DraftTree, rows: Sequence[int], nodes: Sequence[int], like: Float[Tensor, "asked vocab"]
    ) -> None:
        self._draw = tree.draw
        self._certain = tree.draw is Draw.POINT_MASS or tree.draft_logp is None
        self.total = like.new_ones(len(like), 1)
        if self._certain or tree.draft_logp is None:
            self.left = torch.zeros_like(like)
        else:
            inner = tree.draft_logp.shape[1] - 1
            self.left = log_probs_at(tree.draft_logp, rows, [min(node, inner) for node in nodes])
            if tree.draw is Draw.HYBRID:
                self._take_certain(tree, rows, nodes)

    def _take_certain(self, tree: DraftTree, rows: Sequence[int], nodes: Sequence[int]) -> None:
        """The distributions of hybrid first children: ``q`` without the certain siblings, or certainty where none was drawn.

        The sum is taken anew, for the reason given in :meth:`seen`.
        """
        certain = [
            [tree.lists[0][row][child] for child in tree.children[row][node] if tree.certain[row][child]]
            for row, node in zip(rows, nodes, strict=True)
        ]
        if lines := [line for line, tokens in enumerate(certain) for _ in tokens]:
            self.left[lines, [token for tokens in certain for token in tokens]] = 0.0
        if sure := [
            line
            for line, (row, node) in enumerate(zip(rows, nodes, strict=True))
            if certain[line] and tree.certain[row][tree.children[row][node][0]]
        ]:
            self.left[sure] = 0.0
            self.left[sure, [certain[line][0] for line in sure]] = 1.0
        self.total = self.left.sum(-1, keepdim=True)

    def narrow(self, count: int) -> None:
        """Go on with the first ``count`` nodes only."""
        self.left, self.total = self.left[:count], self.total[:count]

    def child(self, token: Int[Tensor, "asked 1"]) -> None:
        """The next child of each node is about to be tried."""
        if self._certain:
            self.left.zero_().scatter_(1, token, 1.0)

    def seen(self, token: Int[Tensor, "asked 1"]) -> None:
        """It was tried, and there may be another one."""
        if self._draw is Draw.HYBRID and not self._certain:
            self._certain, self.total = True, torch.ones_like(self.total)  # only the first child of a node is drawn
        if self._draw is Draw.WITHOUT_REPLACEMENT and not self._certain:
            self.left.scatter_(1, token, 0.0)
            # Summed anew: one less the drawn probability would lose every digit where the draft was almost sure.
            self.total = self.left.sum(-1, keepdim=True)
