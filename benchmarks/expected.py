"""The expected number of accepted tokens of a tree: the exact mean over the random choices of a verifier."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.tree import DraftTree
from draftwood.verify.traversal import inner_levels, stop_weights, weigh_children


def traversal(tree: DraftTree, target_logp: Float[Tensor, "row node vocab"]) -> list[float]:
    """The mean of each row's tree under traversal verification."""
    order, stops, _ = stop_weights(tree, target_logp)
    depths = torch.as_tensor(tree.depths, device=order.device).gather(1, order)
    return list(((stops * depths).sum(1) / stops.sum(1)).tolist())


def recursive(tree: DraftTree, target_logp: Float[Tensor, "row node vocab"]) -> list[float]:
    """The mean of each row's tree under recursive rejection; ``depth x branching`` batched steps."""
    accepted = torch.ones(tree.rows, tree.size, dtype=torch.float64, device=target_logp.device)  # once a node is tried
    for parents in inner_levels(tree, target_logp.device):
        tried = torch.ones_like(accepted)  # recursive rejection starts at each node with its full weight
        weigh_children(tree, parents, tried, target_logp)
        children = torch.cat(parents.children)
        accepted.view(-1)[children] = tried.view(-1)[children]
    return [_mean(children, values) for children, values in zip(tree.children, accepted.tolist(), strict=True)]


def _mean(children: list[list[int]], accepted: list[float]) -> float:
    """The sum, over all nodes but the root, of the probability that they are kept."""
    kept = [1.0] + [0.0] * (len(children) - 1)
    for node, below in enumerate(children):
        remaining = kept[node]
        for child in below:
            kept[child] = remaining * accepted[child]
            remaining -= kept[child]
    return sum(kept[1:])
