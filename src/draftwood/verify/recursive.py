"""Recursive rejection sampling over a tree (RSD, arXiv 2402.14160, algorithm 2; SpecInfer's rule for independent draws).

One rule for every mix of per-child distributions: child ``j`` is accepted with probability ``min(1, r[x_j] / Q_j[x_j])``,
else ``r = norm(relu(r - Q_j))``. Exact because each sibling is a draw from its own distribution ``Q_j`` given the earlier
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.core.verifiers import Reads
from draftwood.verify.siblings import SiblingProbs, log_probs_at


@final
class Recursive:
    """Recursive rejection sampling; see the module's text."""

    name: ClassVar[str] = "recursive"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = DRAWS_WITH_LOG_PROBS
    reads: ClassVar[Reads] = "probabilities"
    greedy_only: ClassVar[bool] = False

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """At most ``depth x branching`` batched steps, each with one host sync; the walk itself is kept on the host."""
        node, paths = [0] * tree.rows, list[list[int]]([] for _ in range(tree.rows))
        left = _Left(log_probs_at(target_logp, range(tree.rows), node))
        walking = [bool(children[0]) for children in tree.children]
        while any(walking):
            chosen = _try_children(tree, node, walking, left, rng)
            for row, child in enumerate(chosen):
                if child:
                    node[row] = child
                    paths[row].append(child)
            if any(chosen):
                left.replace(log_probs_at(target_logp, range(tree.rows), node), [child > 0 for child in chosen])
            walking = [child > 0 and bool(tree.children[row][child]) for row, child in enumerate(chosen)]
        spent = [total <= 0 for total in left.total.squeeze(1).tolist()]  # host sync
        if any(spent):  # by rounding only: the target's distribution stands for what is left of it
            left.replace(log_probs_at(target_logp, range(tree.rows), node), spent)
        return Verdict(paths=paths, next_tokens=rng.token(left.distribution).tolist())


@final
class _Left:
    """What is left of the target's distributions: ``distribution`` up to the factor ``total``, its sum."""

    def __init__(self, distribution: Float[Tensor, "row vocab"]) -> None:
        self.distribution = distribution
        self.total = distribution.new_ones(len(distribution), 1)

    def replace(self, distribution: Float[Tensor, "row vocab"], rows: Sequence[bool]) -> None:
        """Take the lines of ``distribution`` in these rows."""
        if all(rows):
            self.distribution, self.total = distribution, torch.ones_like(self.total)
        elif any(rows):
            column = torch.tensor(rows, device=distribution.device).unsqueeze(1)
            self.distribution = torch.where(column, distribution, self.distribution)
            self.total = self.total.masked_fill(column, 1.0)

    def reject(self, siblings: SiblingProbs, share: Sequence[float]) -> None:
        """``relu(r - share Q_j)``; a share of 0 leaves a row as it is."""
        less = torch.tensor(share, dtype=self.distribution.dtype, device=self.distribution.device).unsqueeze(1)
        self.distribution.addcmul_(siblings.left, less, value=-1).relu_()
        self.total = self.distribution.sum(-1, keepdim=True)


def _try_children(tree: DraftTree, node: Sequence[int], walking: Sequence[bool], left: _Left, rng: RoundRng) -> list[int]:
    """The accepted child per row, or 0; ``left`` becomes what rejections leave.

    Both distributions are kept with their sums instead of being normalised at every step.
    """
    chosen = [0] * tree.rows
    siblings = SiblingProbs(tree, range(tree.rows), node, left.distribution)
    waiting = [tree.children[row][v] if walking[row] else [] for row, v in enumerate(node)]
    for j in range(max(map(len, waiting))):
        child = [w[j] if j < len(w) and not chosen[row] else 0 for row, w in enumerate(waiting)]  # 0 asks nothing
        if not any(child):
            break
        token = torch.tensor([[tree.lists[0][row][c]] for row, c in enumerate(child)], device=left.distribution.device)
        siblings.child(token)
        numbers = [left.distribution.gather(1, token), left.total, siblings.left.gather(1, token), siblings.total]
        p, p_sum, q, q_sum = torch.cat(numbers, dim=1).T.tolist()  # host sync
        target = [a * total for a, total in zip(p, q_sum, strict=True)]
        draft = [a * total for a, total in zip(q, p_sum, strict=True)]
        for row, accepted in enumerate(rng.accept(target, draft, child)):
            if child[row] and accepted:
                chosen[row] = child[row]
        share = [a / b if c and not yes else 0.0 for a, b, c, yes in zip(p_sum, q_sum, child, chosen, strict=True)]
        if any(share):
            left.reject(siblings, share)
            siblings.seen(token)
    return chosen
