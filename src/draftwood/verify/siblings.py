"""The distributions ``Q_1, Q_2, ...`` from which the children of a node were drawn, for many nodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.log_probs import lines_at
from draftwood.core.tree import DraftTree


def probs_at(
    logp: Float[Tensor, "row node vocab"], rows: Sequence[int], nodes: Sequence[int]
) -> Float[Tensor, "parent vocab"]:
    """The probabilities at some nodes, one line each, in memory of their own."""
    return lines_at(logp, rows, nodes).exp()


@final
class SiblingProbs:
    """The distributions of the children of some nodes, sibling by sibling in draw order, each up to a factor.

    The caller steps through the siblings: :meth:`before_trial`, then read ``probs`` and ``total``, then :meth:`after_trial`.

    Attributes:
        probs: ``Q_j`` times ``total``.
        total: the sum of ``probs``.
    """

    probs: Float[Tensor, "parent vocab"]
    total: Float[Tensor, "parent 1"]

    def __init__(
        self, tree: DraftTree, rows: Sequence[int], nodes: Sequence[int], like: Float[Tensor, "parent vocab"]
    ) -> None:
        draft = tree.draft_log_probs
        self._draw = Draw.POINT_MASS if draft is None else tree.draw
        self.total = like.new_ones(len(like), 1)
        if draft is None:
            self.probs = torch.zeros_like(like)
        else:
            inner = draft.logp.shape[1] - 1
            self.probs = draft.probs(rows, [min(node, inner) for node in nodes])
            if len(rows) > 1:
                self.probs.nan_to_num_(nan=0.0)  # of a row for which nothing could be drafted

    def narrow(self, count: int) -> None:
        """Keep the first ``count`` nodes only."""
        self.probs, self.total = self.probs[:count], self.total[:count]

    def before_trial(self, token: Int[Tensor, "parent 1"]) -> None:
        """Set the distributions of the next siblings, which hold these tokens."""
        if self._draw is Draw.POINT_MASS:
            self.probs.zero_().scatter_(1, token, 1.0)

    def after_trial(self, token: Int[Tensor, "parent 1"]) -> None:
        """Set the distributions for the siblings that follow those with these tokens."""
        if self._draw is Draw.WITHOUT_REPLACEMENT:
            self.probs.scatter_(1, token, 0.0)
            # Summed again: subtracting the drawn probability would lose every digit where the draft was almost sure.
            self.total = self.probs.sum(-1, keepdim=True)
