"""Traversal verification: from the leaves to the root (arXiv 2505.12398), with each child's own distribution ``Q_j``.

A child's weight is what recursive rejection leaves undecided: the chance that it may be kept, given all that came before it.
Leaves are asked first, so that a long path is not lost by one rejection on the way. On a chain this is Block Verification
(arXiv 2403.10444); with ``Q_j`` it is exact for RSD-C and RSD-S trees as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.core.verifiers import Reads
from draftwood.verify.siblings import SiblingProbs, log_probs_at


@final
@dataclass
class Parents:
    """The nodes of one depth that have children, of all rows; those with most children first.

    Attributes:
        rows, nodes: where they are.
        at: their places among the nodes of all rows.
        tries: the places of their first children, then of their second ones, and so on; int64 [asked].
        tokens: the tokens there; int64 [asked, 1].
    """

    rows: list[int]
    nodes: list[int]
    at: Int[Tensor, "parent"]
    tries: list[Tensor]
    tokens: list[Tensor]


@final
class Traversal:
    """Traversal verification; see the module's text."""

    name: ClassVar[str] = "traversal"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = DRAWS_WITH_LOG_PROBS
    reads: ClassVar[Reads] = "probabilities"
    greedy_only: ClassVar[bool] = False

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """``depth x branching`` batched steps that wait for no result; one draw for the path, one for the token."""
        own = torch.ones(tree.rows, tree.size, dtype=torch.float64, device=target_logp.device)
        left: dict[tuple[int, int], Tensor] = {}  # what remains of the target's distribution at inner nodes, up to a factor
        for parents in inner_levels(tree):
            distributions = pass_down(tree, parents, own, target_logp)
            if (
                parents.nodes[0] == 0
            ):  # what remains of a root is nothing by rounding only: the target's distribution stands for it
                distributions = torch.where(
                    own[parents.rows, 0, None] > 0, distributions, log_probs_at(target_logp, parents.rows, parents.nodes)
                )
            left.update(zip(zip(parents.rows, parents.nodes, strict=True), distributions, strict=True))
        own[:, 0] = 1.0
        orders = [leaves_first(children) for children in tree.children]
        longest = max(map(len, orders))
        order = torch.tensor([o + [0] * (longest - len(o)) for o in orders], device=own.device)
        asked = own.gather(1, order)
        stops = asked * (1 - asked).cumprod(dim=1).roll(1, dims=1).index_fill(1, order.new_zeros(1), 1.0)
        ends = order.gather(1, rng.path(stops).unsqueeze(1)).squeeze(1).tolist()  # host sync
        distributions = torch.stack([
            left[row, end] if (row, end) in left else target_logp[row, end].exp() for row, end in enumerate(ends)
        ])  # fmt: skip
        return Verdict(
            paths=[_path(parents, end) for parents, end in zip(tree.lists[1], ends, strict=True)],
            next_tokens=rng.token(distributions).tolist(),
            expected=((stops * tree.depths.gather(1, order)).sum(1) / stops.sum(1)).tolist(),
        )


def inner_levels(tree: DraftTree) -> list[Parents]:
    """Inner nodes, depth by depth."""
    levels: list[list[tuple[int, int]]] = []
    for row, children in enumerate(tree.children):
        front = [0]
        for depth in range(tree.size):
            front = [node for node in front if children[node]]
            if not front:
                break
            if depth == len(levels):
                levels.append([])
            levels[depth] += [(row, node) for node in front]
            front = [child for node in front for child in children[node]]
    return [parents_of(tree, level) for level in levels]


def parents_of(tree: DraftTree, level: list[tuple[int, int]]) -> Parents:
    """These nodes with children, each given by its row and its number."""
    level.sort(key=lambda at: -len(tree.children[at[0]][at[1]]))
    below = [[row * tree.size + child for child in tree.children[row][node]] for row, node in level]
    tries = [[children[j] for children in below if len(children) > j] for j in range(len(below[0]))]
    above = [row * tree.size + node for row, node in level]
    places = torch.tensor([*above, *chain.from_iterable(tries)], device=tree.tokens.device)  # one transfer for the level
    at, *children = torch.split_with_sizes(places, [len(level), *map(len, tries)])
    tokens = [tree.tokens.flatten().index_select(0, asked).unsqueeze(1) for asked in children]
    return Parents([row for row, _ in level], [node for _, node in level], at, children, tokens)


def pass_down(
    tree: DraftTree,
    parents: Parents,
    own: Float[Tensor, "row node"],
    target_logp: Float[Tensor, "row node vocab"],
    after: Float[Tensor, "row node tried"] | None = None,
) -> Float[Tensor, "parent vocab"]:
    """Give the children of one depth their weights (in ``own``), and put the parents' final weights in their place.

    Returns what is left of the target's distribution at the parents, times the weight: that is the sum of each line. Where
    ``after`` is given, it takes down every node's weight after each number of its children.
    """
    weights = own.view(-1)
    weight = weights.index_select(0, parents.at).unsqueeze(1)
    left = log_probs_at(target_logp, parents.rows, parents.nodes)
    siblings = SiblingProbs(tree, parents.rows, parents.nodes, left)
    left.mul_(weight)
    for j, (children, token) in enumerate(zip(parents.tries, parents.tokens, strict=True)):
        if j:
            siblings.seen(parents.tokens[j - 1])
        count = len(children)
        siblings.narrow(count)
        siblings.child(token)
        odds = left[:count].gather(1, token) / siblings.left.gather(1, token) * siblings.total
        weights.index_copy_(0, children, odds.squeeze(1).clamp_(max=1.0).to(own.dtype))
        _take_away(left[:count], weight[:count], siblings)
        if after is not None:
            after.flatten(0, 1)[children, 0] = weights[children]
            after.flatten(0, 1)[parents.at[:count], j + 1] = weight[:count].squeeze(1)
    weights.index_copy_(0, parents.at, weight.squeeze(1))
    return left


def _take_away(left: Float[Tensor, "parent vocab"], weight: Float[Tensor, "parent 1"], siblings: SiblingProbs) -> None:
    """In place: with ``d = relu(w r - Q_j)`` and its sum ``S``, ``w`` becomes ``S / (S + 1 - w)`` and ``r`` is ``d / S``."""
    left.addcmul_(siblings.left, siblings.total.reciprocal(), value=-1).relu_()
    remains = left.sum(-1, keepdim=True, dtype=weight.dtype)
    # Where nothing remains of a weight of 1, both are 0; nothing will be asked of them.
    either = (1 - weight).add_(remains).clamp_(min=torch.finfo(left.dtype).tiny)
    left.div_(either)
    torch.div(remains, either, out=weight)


def leaves_first(children: Sequence[Sequence[int]]) -> list[int]:
    """Nodes of one row, depth-first, children in draw order, each after its children."""
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
