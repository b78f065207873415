"""The expected number of accepted tokens of a tree: exact means over the verifier's own random choices.

One pass over the vocabulary serves the tree and many of its subtrees: those that keep, with each node, its parent and its
earlier siblings. Whether a child is accepted depends on its parent and on the siblings tried before it. It does not depend
on later siblings or on deeper nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.tree import DraftTree
from draftwood.verify.traversal import inner_levels, weigh_children


@final
class Expected:
    """Expected accepted tokens of one row's tree, under recursive rejection and under traversal verification.

    Args:
        children: of each node, in draw order.
        depths: of each node.
        acceptances: for each node, the probability that recursive rejection accepts it once it is tried.
        weights: for each node, its traversal weight after 0, 1, 2, ... of its children.
    """

    def __init__(
        self, children: list[list[int]], depths: list[int], acceptances: list[float], weights: list[list[float]]
    ) -> None:
        self._children = children
        self._depths = depths
        self._weights = weights
        self._kept = [0.0] * len(children)  # the probability that recursive rejection keeps the node
        self._kept[0] = 1.0
        for node, below in enumerate(children):
            remaining = self._kept[node]
            for child in below:
                self._kept[child] = remaining * acceptances[child]
                remaining -= self._kept[child]

    def recursive(self, subtree: Collection[int]) -> float:
        """Accepted tokens on average under recursive rejection, if only these nodes had been drafted."""
        return sum((self._kept[node] for node in subtree if node), 0.0)

    def traversal(self, subtree: Collection[int]) -> float:
        """Accepted tokens on average under traversal verification, if only these nodes had been drafted."""
        mean, undecided = 0.0, 1.0

        def visit(node: int) -> None:
            nonlocal mean, undecided
            tried = [child for child in self._children[node] if child in subtree]
            for child in tried:
                visit(child)
            stop = self._weights[node][len(tried)] if node else 1.0
            mean += undecided * stop * self._depths[node]
            undecided *= 1 - stop

        visit(0)
        return mean


def expected(tree: DraftTree, target_logp: Float[Tensor, "row node vocab"]) -> list[Expected]:
    """The expectations for each row's tree; ``depth x branching`` batched steps for each of the two verifiers."""
    weights_after = torch.ones(tree.rows, tree.size, tree.branching + 1, dtype=torch.float64, device=target_logp.device)
    weights, acceptances = weights_after[..., 0].clone(), weights_after[..., 0].clone()
    for parents in inner_levels(tree):
        weigh_children(tree, parents, weights, target_logp, weights_after)
        tried = torch.ones_like(weights)  # recursive rejection starts at each node with its full weight
        weigh_children(tree, parents, tried, target_logp)
        children = torch.cat(parents.children)
        acceptances.view(-1)[children] = tried.view(-1)[children]
    columns = (tree.depths.tolist(), acceptances.tolist(), weights_after.tolist())
    return [Expected(*row) for row in zip(tree.children, *columns, strict=True)]
