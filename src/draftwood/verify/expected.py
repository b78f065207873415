"""How many drafted tokens a verifier is expected to accept, given the tree: exact means over its own random choices.

One pass over the vocabulary serves the tree and every smaller tree that it contains, if that keeps with each node its
parent and its earlier siblings: what happens at a node depends on nothing else. The acceptance of a child hangs on its
parent and on the siblings tried before it, never on those after it or on what lies below.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.tree import DraftTree
from draftwood.verify.traversal import inner_levels, pass_down


@final
class Expected:
    """One row's tree under recursive rejection and under traversal verification.

    Args:
        children: of each node, in draw order.
        depths: of each node.
        chances: of each node, the probability that recursive rejection accepts it when it is tried.
        weights: of each node, traversal's weight after 0, 1, 2, ... of its children.
    """

    def __init__(
        self, children: list[list[int]], depths: list[int], chances: list[float], weights: list[list[float]]
    ) -> None:
        self._children = children
        self._depths = depths
        self._weights = weights
        self._reach = [0.0] * len(children)  # the probability that recursive rejection keeps the node
        self._reach[0] = 1.0
        for node, below in enumerate(children):
            left = self._reach[node]
            for child in below:
                self._reach[child] = left * chances[child]
                left -= self._reach[child]

    def recursive(self, kept: Collection[int]) -> float:
        """Accepted tokens on average under recursive rejection, if only these nodes had been drafted."""
        return sum((self._reach[node] for node in kept if node), 0.0)

    def traversal(self, kept: Collection[int]) -> float:
        """Accepted tokens on average under traversal verification, if only these nodes had been drafted."""
        mean, going = 0.0, 1.0

        def visit(node: int) -> None:
            nonlocal mean, going
            tried = [child for child in self._children[node] if child in kept]
            for child in tried:
                visit(child)
            own = self._weights[node][len(tried)] if node else 1.0
            mean += going * own * self._depths[node]
            going *= 1 - own

        visit(0)
        return mean


def expected(tree: DraftTree, target_logp: Float[Tensor, "row node vocab"]) -> list[Expected]:
    """What to expect of each row's tree; ``depth x branching`` batched steps for each of the two verifiers."""
    weights = torch.ones(tree.rows, tree.size, tree.branching + 1, dtype=torch.float64, device=target_logp.device)
    own, chances = weights[..., 0].clone(), weights[..., 0].clone()
    for parents in inner_levels(tree):
        pass_down(tree, parents, own, target_logp, weights)
        tried = torch.ones_like(own)  # recursive rejection comes to each node with all of its weight
        pass_down(tree, parents, tried, target_logp)
        children = torch.cat(parents.tries)
        chances.view(-1)[children] = tried.view(-1)[children]
    columns = (tree.depths.tolist(), chances.tolist(), weights.tolist())
    return [Expected(*row) for row in zip(tree.children, *columns, strict=True)]
