"""Traversal verification: from the leaves to the root (arXiv 2505.12398), with each child's own distribution ``Q_j``.

A child's weight is what recursive rejection leaves undecided: the probability that the child may still be kept, given all
earlier trials. Leaves are tried first, so one rejection on the way does not lose a long path. On a chain this is Block
Verification (arXiv 2403.10444). With ``Q_j`` it is exact for RSD-C and RSD-S trees as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.verify import Known
from draftwood.verify.siblings import SiblingProbs, probs_at


@final
@dataclass
class Parents:
    """Nodes with children, of all rows; those with most children first.

    A flat index is ``row * tree.size + node``.

    Attributes:
        rows, nodes: the parents' rows, and their numbers in them.
        flat: the parents' flat indices; int64 [parent].
        children: the flat indices of their first children, then of their second ones, and so on; int64 [parent] each,
            without the parents that have fewer children.
        tokens: the tokens of these children; int64 [parent, 1] each.
    """

    rows: list[int]
    nodes: list[int]
    flat: Int[Tensor, "parent"]
    children: list[Tensor]
    tokens: list[Tensor]


@final
class Traversal(Known, name="traversal"):
    """Traversal verification; see the module's text."""

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """``depth x branching`` batched steps without a host sync; then one draw for the path and one for the token."""
        if tree.size == 1:
            rng.path(target_logp.new_ones(tree.rows, 1))  # as in every tree: a row draws the same next to larger ones
            tokens = rng.token(target_logp[:, 0].exp()).tolist()
            return Verdict(paths=[[] for _ in tokens], next_tokens=tokens)
        order, stops, residuals = stop_weights(tree, target_logp)
        ends = order.gather(1, rng.path(stops).unsqueeze(1)).squeeze(1).tolist()  # host sync
        next_probs = torch.stack([
            residuals[row, end] if (row, end) in residuals else target_logp[row, end].exp() for row, end in enumerate(ends)
        ])  # fmt: skip
        return Verdict(
            paths=[_path(parents, end) for parents, end in zip(tree.host.parents, ends, strict=True)],
            next_tokens=rng.token(next_probs).tolist(),
        )


def stop_weights(
    tree: DraftTree, target_logp: Float[Tensor, "row node vocab"]
) -> tuple[Int[Tensor, "row place"], Float[Tensor, "row place"], dict[tuple[int, int], Tensor]]:
    """Where a path may end: the nodes from the leaves on, the weight of stopping at each, and the residuals of the target's
    distributions at inner nodes (by row and node), each up to a factor. Shorter rows end with roots of weight 0."""
    weights = torch.ones(tree.rows, tree.size, dtype=torch.float64, device=target_logp.device)
    residuals: dict[tuple[int, int], Tensor] = {}
    for parents in inner_levels(tree, target_logp.device):
        residual = weigh_children(tree, parents, weights, target_logp)
        if parents.nodes[0] == 0:
            # A root's residual is empty by rounding only: the target's own distribution takes its place.
            own = probs_at(target_logp, parents.rows, parents.nodes)
            residual = torch.where(weights[parents.rows, 0, None] > 0, residual, own)
        residuals.update(zip(zip(parents.rows, parents.nodes, strict=True), residual, strict=True))
    weights[:, 0] = 1.0
    orders = [post_order(children) for children in tree.children]
    longest = max(map(len, orders))
    order = torch.tensor([o + [0] * (longest - len(o)) for o in orders], device=weights.device)
    kept = weights.gather(1, order)
    stops = kept * (1 - kept).cumprod(dim=1).roll(1, dims=1).index_fill(1, order.new_zeros(1), 1.0)
    return order, stops, residuals


def inner_levels(tree: DraftTree, device: torch.device) -> list[Parents]:
    """The nodes with children, one :class:`Parents` per depth, from the root down; with tensors of this device."""
    levels: list[list[tuple[int, int]]] = []
    for row, children in enumerate(tree.children):
        frontier = [0]
        for depth in range(tree.size):
            frontier = [node for node in frontier if children[node]]
            if not frontier:
                break
            if depth == len(levels):
                levels.append([])
            levels[depth] += [(row, node) for node in frontier]
            frontier = [child for node in frontier for child in children[node]]
    return [parents_of(tree, level, device) for level in levels]


def parents_of(tree: DraftTree, level: list[tuple[int, int]], device: torch.device) -> Parents:
    """The nodes given as (row, node), each with at least one child; ``level`` is sorted in place."""
    level.sort(key=lambda parent: -len(tree.children[parent[0]][parent[1]]))
    families = [[row * tree.size + child for child in tree.children[row][node]] for row, node in level]
    by_rank = [[children[j] for children in families if len(children) > j] for j in range(len(families[0]))]
    above, flat_tokens, counts = [row * tree.size + node for row, node in level], tree.tokens.ravel(), [*map(len, by_rank)]
    below = [*chain.from_iterable(by_rank)]
    indices = torch.tensor([*above, *below, *flat_tokens[below].tolist()], device=device)  # one transfer for the level
    flat, *rest = torch.split_with_sizes(indices, [len(level), *counts, *counts])
    children, tokens = rest[: len(counts)], [part.unsqueeze(1) for part in rest[len(counts) :]]
    return Parents([row for row, _ in level], [node for _, node in level], flat, children, tokens)


def weigh_children(
    tree: DraftTree, parents: Parents, weights: Float[Tensor, "row node"], target_logp: Float[Tensor, "row node vocab"]
) -> Float[Tensor, "parent vocab"]:
    """Set the children's weights, and replace the parents' weights by what is left of them after all children.

    Args:
        weights: changed in place.

    Returns:
        The residuals of the target's distributions at the parents, times their weights: each line sums to its weight.
    """
    flat_weights = weights.view(-1)
    weight = flat_weights.index_select(0, parents.flat).unsqueeze(1)
    residual = probs_at(target_logp, parents.rows, parents.nodes)
    siblings = SiblingProbs(tree, parents.rows, parents.nodes, residual)
    residual.mul_(weight)
    for j, (children, token) in enumerate(zip(parents.children, parents.tokens, strict=True)):
        if j:
            siblings.after_trial(parents.tokens[j - 1])
        count = len(children)
        siblings.narrow(count)
        siblings.before_trial(token)
        ratio = residual[:count].gather(1, token) / siblings.probs.gather(1, token) * siblings.total
        flat_weights.index_copy_(0, children, ratio.squeeze(1).clamp_(max=1.0).to(weights.dtype))
        _reject(residual[:count], weight[:count], siblings)
    flat_weights.index_copy_(0, parents.flat, weight.squeeze(1))
    return residual


def _reject(residual: Float[Tensor, "parent vocab"], weight: Float[Tensor, "parent 1"], siblings: SiblingProbs) -> None:
    """Update residual and weight in place for a rejected child.

    With ``d = relu(w r - Q_j)`` and its sum ``S``, the weight ``w`` becomes ``S / (S + 1 - w)`` and ``r`` becomes ``d / S``.
    ``residual`` holds ``w r`` before and after.
    """
    residual.addcmul_(siblings.probs, siblings.total.reciprocal(), value=-1).relu_()
    remains = residual.sum(-1, keepdim=True, dtype=weight.dtype)
    # Where nothing remains of a weight of 1, both terms are 0. Neither result is read there.
    either = (1 - weight).add_(remains).clamp_(min=torch.finfo(residual.dtype).tiny)
    residual.div_(either)
    torch.div(remains, either, out=weight)


def post_order(children: Sequence[Sequence[int]]) -> list[int]:
    """The nodes of one row, depth-first: children in draw order, each node after its children."""
    out: list[int] = []

    def visit(node: int) -> None:
        for child in children[node]:
            visit(child)
        out.append(node)

    visit(0)
    return out


def _path(parents: Sequence[int], end: int) -> list[int]:
    """The nodes from below the root to ``end``."""
    path = []
    while end:
        path.append(end)
        end = parents[end]
    return path[::-1]
