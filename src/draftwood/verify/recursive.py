"""Recursive rejection sampling over a tree (RSD, arXiv 2402.14160, algorithm 2; SpecInfer's rule for independent draws).

One rule for every mix of per-child laws: child ``j`` is accepted with probability ``min(1, r[x_j] / Q_j[x_j])``, else
``r = norm(relu(r - Q_j))``. Exact because each sibling is a draw from its own law ``Q_j`` given the earlier ones.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.noise import Choices
from draftwood.rounds import Verdict
from draftwood.tree import DraftTree, Draw


@final
class SiblingLaws:
    """The laws ``Q_1, Q_2, ...`` of the children of one node per row, in draw order."""

    def __init__(self, tree: DraftTree, node: Int[Tensor, "row"]) -> None:
        self._draw = tree.draw
        self._left: Float[Tensor, "row vocab"] | None = None  # probabilities, normalised
        if tree.draft_logp is not None:
            inner = node.clamp(max=tree.draft_logp.shape[1] - 1)
            self._left = tree.draft_logp.take_along_dim(inner[:, None, None], dim=1).squeeze(1).exp()

    def law(self, token: Int[Tensor, "row"], like: Float[Tensor, "row vocab"]) -> Float[Tensor, "row vocab"]:
        """``Q_j``, where ``token`` is the j-th child."""
        if self._draw is Draw.POINT_MASS or self._left is None:
            return torch.zeros_like(like).scatter_(1, token.unsqueeze(1), 1.0)
        return self._left

    def seen(self, token: Int[Tensor, "row"]) -> None:
        """Go on to the next child."""
        if self._draw is Draw.WITHOUT_REPLACEMENT and self._left is not None:
            left = self._left.scatter(1, token.unsqueeze(1), 0.0)
            self._left = left / left.sum(-1, keepdim=True)


def residual(r: Float[Tensor, "row vocab"], q: Float[Tensor, "row vocab"]) -> Float[Tensor, "row vocab"]:
    """``norm(relu(r - q))``. Where it vanishes, rejection had probability 0 up to rounding and ``r`` itself stays."""
    left = (r - q).relu_()
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, r)


@final
class Recursive:
    """Recursive rejection sampling; see the module's text."""

    name: ClassVar[str] = "recursive"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = frozenset({Draw.WITHOUT_REPLACEMENT, Draw.INDEPENDENT, Draw.POINT_MASS})

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], choices: Choices) -> Verdict:
        """At most ``depth x branching`` batched steps; stops as soon as no row walks on (one host sync a step)."""
        node = torch.zeros(tree.rows, dtype=torch.long, device=target_logp.device)
        walking = torch.ones_like(node, dtype=torch.bool)
        r = target_logp[:, 0].exp()
        accepted = []
        for _ in range(tree.max_depth):
            child, r = self._try_children(tree, node, walking, r, choices)
            accepted.append(child)
            walking = child >= 0
            if not bool(walking.any()):
                break
            node = torch.where(walking, child, node)
            below = target_logp.take_along_dim(node[:, None, None], dim=1).squeeze(1).exp()
            r = torch.where(walking.unsqueeze(1), below, r)
        nodes = torch.stack(accepted, dim=1) if accepted else node.new_zeros(tree.rows, 0)
        return Verdict(nodes=nodes, next_token=choices.token(r))

    @staticmethod
    def _try_children(
        tree: DraftTree,
        node: Int[Tensor, "row"],
        walking: Bool[Tensor, "row"],
        r: Float[Tensor, "row vocab"],
        choices: Choices,
    ) -> tuple[Int[Tensor, "row"], Float[Tensor, "row vocab"]]:
        """The accepted child per row, or -1, and the law that is left."""
        children = tree.children.take_along_dim(node[:, None, None], dim=1).squeeze(1)
        chosen = torch.full_like(node, -1)
        siblings = SiblingLaws(tree, node)
        for j in range(tree.branching):
            child = children[:, j]
            asking = walking & (chosen < 0) & (child >= 0)
            if not bool(asking.any()):
                break
            child = torch.where(asking, child, 0)  # the root is nobody's child: it stands for rows that do not ask
            token = tree.tokens.gather(1, child.unsqueeze(1))
            q = siblings.law(token.squeeze(1), r)
            yes = choices.accept(r.gather(1, token).squeeze(1), q.gather(1, token).squeeze(1), child, tree.size)
            chosen = torch.where(asking & yes, child, chosen)
            rejected = asking & ~yes
            if not bool(rejected.any()):
                break
            r = torch.where(rejected.unsqueeze(1), residual(r, q), r)
            siblings.seen(token.squeeze(1))
        return chosen, r
