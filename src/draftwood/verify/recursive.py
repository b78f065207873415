"""Recursive rejection sampling over a tree (RSD, arXiv 2402.14160, algorithm 2; SpecInfer's rule for independent draws).

One rule for every mix of per-child laws: child ``j`` is accepted with probability ``min(1, r[x_j] / Q_j[x_j])``, else
``r = norm(relu(r - Q_j))``. Exact because each sibling is a draw from its own law ``Q_j`` given the earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from draftwood.noise import Choices
from draftwood.rounds import Verdict
from draftwood.tree import DRAWS_WITH_LAWS, DraftTree, Draw
from draftwood.verify.siblings import SiblingLaws, laws_at


@final
class Recursive:
    """Recursive rejection sampling; see the module's text."""

    name: ClassVar[str] = "recursive"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = DRAWS_WITH_LAWS

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], choices: Choices) -> Verdict:
        """At most ``depth x branching`` batched steps, each with one host sync; the walk itself is kept on the host."""
        rows, node = range(tree.rows), [0] * tree.rows
        steps: list[list[int]] = []
        r = target_logp[:, 0].exp()
        walking = [bool(children[0]) for children in tree.children]
        while any(walking):
            chosen, r = _try_children(tree, node, walking, r, choices)
            steps.append(chosen)
            if max(chosen) < 0:
                break
            node = [max(was, new) for was, new in zip(node, chosen, strict=True)]  # a child's number is the larger one
            r = torch.where(_column([c >= 0 for c in chosen], r), laws_at(target_logp, rows, node), r)
            walking = [c >= 0 and bool(tree.children[row][c]) for row, c in enumerate(chosen)]
        taken = torch.tensor(steps, dtype=torch.long, device=r.device).reshape(len(steps), tree.rows)
        return Verdict(nodes=taken.T, next_token=choices.token(r))


def _column(values: Sequence[bool], like: Tensor) -> Bool[Tensor, "row 1"]:
    return torch.tensor(values, device=like.device).unsqueeze(1)


def _try_children(
    tree: DraftTree, node: Sequence[int], walking: Sequence[bool], r: Float[Tensor, "row vocab"], choices: Choices
) -> tuple[list[int], Float[Tensor, "row vocab"]]:
    """The accepted child per row, or -1, and the law that is left, up to a factor.

    Both ``r`` and ``Q_j`` are kept with their sums instead of being normalised at every step.
    """
    chosen = [-1] * tree.rows
    siblings = SiblingLaws(tree, range(tree.rows), node, r)
    waiting = [tree.children[row][v] if walking[row] else [] for row, v in enumerate(node)]
    asking = list(walking)
    total = r.new_ones(tree.rows, 1)  # the sum of r
    for j in range(tree.branching):
        asking = [asks and j < len(w) for asks, w in zip(asking, waiting, strict=True)]
        if not any(asking):
            break
        child = [w[j] if asks else 0 for asks, w in zip(asking, waiting, strict=True)]  # the root stands for no question
        token = torch.tensor([[tree.lists[0][row][c]] for row, c in enumerate(child)], device=r.device)
        siblings.child(token)
        odds = torch.cat([r.gather(1, token) * siblings.total, siblings.left.gather(1, token) * total], dim=1)
        p, q = zip(*odds.tolist(), strict=True)  # host sync
        for row, accepted in enumerate(choices.accept(p, q, child)):
            if asking[row] and accepted:
                chosen[row], asking[row] = child[row], False
        if any(asking):
            r, total = _rejected(r, total, siblings, _column(asking, r))
            siblings.seen(token)
    return chosen, r


def _rejected(
    r: Float[Tensor, "row vocab"],
    total: Float[Tensor, "row 1"],
    siblings: SiblingLaws,
    rejected: Bool[Tensor, "row 1"],
) -> tuple[Float[Tensor, "row vocab"], Float[Tensor, "row 1"]]:
    """``relu(r - Q_j)`` and its sum in rows that rejected. Where it vanishes, rejection had probability 0 up to rounding and
    ``r`` itself stays."""
    left = torch.addcmul(r, siblings.left, total / siblings.total, value=-1).relu_()
    rest = left.sum(-1, keepdim=True)
    changed = rejected & (rest > 0)
    return torch.where(changed, left, r), torch.where(changed, rest, total)
