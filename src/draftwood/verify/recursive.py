"""Recursive rejection sampling over a tree (RSD, arXiv 2402.14160, algorithm 2; SpecInfer's rule for independent draws).

One rule covers every mix of per-child distributions. Child ``j`` is accepted with probability ``min(1, r[x_j] / Q_j[x_j])``;
after a rejection the residual becomes ``r = norm(relu(r - Q_j))``. The rule is exact because each sibling is a draw from its
own distribution ``Q_j`` given the earlier siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.verify import Known
from draftwood.verify.siblings import SiblingProbs, probs_at


@final
class Recursive(Known, name="recursive"):
    """Recursive rejection sampling; see the module's text."""

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """Walk down from the root on the host; at most ``depth x branching`` batched steps, each with one host sync."""
        node, paths = [0] * tree.rows, list[list[int]]([] for _ in range(tree.rows))
        residual = _Residual(probs_at(target_logp, range(tree.rows), node))
        walking = [bool(children[0]) for children in tree.children]
        while any(walking):
            accepted = _try_children(tree, node, walking, residual, rng)
            for row, child in enumerate(accepted):
                if child:
                    node[row] = child
                    paths[row].append(child)
            if any(accepted):
                residual.replace(probs_at(target_logp, range(tree.rows), node), [child > 0 for child in accepted])
            walking = [child > 0 and bool(tree.children[row][child]) for row, child in enumerate(accepted)]
        empty = [total <= 0 for total in residual.total.squeeze(1).tolist()]  # host sync
        if any(empty):  # by rounding only: the target's own distribution takes the residual's place
            residual.replace(probs_at(target_logp, range(tree.rows), node), empty)
        return Verdict(paths=paths, next_tokens=rng.token(residual.probs).tolist())


@final
class _Residual:
    """The target's distributions minus what rejected siblings took: ``probs`` up to the factor ``total``, their sum."""

    def __init__(self, probs: Float[Tensor, "row vocab"]) -> None:
        self.probs = probs
        self.total = probs.new_ones(len(probs), 1)

    def replace(self, probs: Float[Tensor, "row vocab"], rows: Sequence[bool]) -> None:
        """Start again from the lines of ``probs`` in these rows."""
        if all(rows):
            self.probs, self.total = probs, torch.ones_like(self.total)
        elif any(rows):
            column = torch.tensor(rows, device=probs.device).unsqueeze(1)
            self.probs = torch.where(column, probs, self.probs)
            self.total = self.total.masked_fill(column, 1.0)

    def subtract(self, siblings: SiblingProbs, factors: Sequence[float]) -> None:
        """``relu(r - factor Q_j)``, in place; a factor of 0 leaves a row as it is."""
        column = torch.tensor(factors, dtype=self.probs.dtype, device=self.probs.device).unsqueeze(1)
        self.probs.addcmul_(siblings.probs, column, value=-1).relu_()
        self.total = self.probs.sum(-1, keepdim=True)


def _try_children(
    tree: DraftTree, node: Sequence[int], walking: Sequence[bool], residual: _Residual, rng: RoundRng
) -> list[int]:
    """The accepted child of each row's node, or 0; rejections are subtracted from ``residual``.

    Neither distribution is normalised at each step: both are kept with their sums.
    """
    accepted = [0] * tree.rows
    siblings = SiblingProbs(tree, range(tree.rows), node, residual.probs)
    waiting = [tree.children[row][v] if walking[row] else [] for row, v in enumerate(node)]
    for j in range(max(map(len, waiting))):
        child = [w[j] if j < len(w) and not accepted[row] else 0 for row, w in enumerate(waiting)]  # 0: no trial
        if not any(child):
            break
        token = torch.tensor([[tree.host.tokens[row][c]] for row, c in enumerate(child)], device=residual.probs.device)
        siblings.before_trial(token)
        columns = [residual.probs.gather(1, token), residual.total, siblings.probs.gather(1, token), siblings.total]
        p, p_sum, q, q_sum = torch.cat(columns, dim=1).T.tolist()  # host sync
        target = [a * total for a, total in zip(p, q_sum, strict=True)]
        draft = [a * total for a, total in zip(q, p_sum, strict=True)]
        for row, accept in enumerate(rng.accept(target, draft, child)):
            if child[row] and accept:
                accepted[row] = child[row]
        factors = [a / b if c and not kept else 0.0 for a, b, c, kept in zip(p_sum, q_sum, child, accepted, strict=True)]
        if any(factors):
            residual.subtract(siblings, factors)
            siblings.after_trial(token)
    return accepted
