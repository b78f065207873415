"""Traversal verification: from the leaves to the root (arXiv 2505.12398), with each child's own law ``Q_j``.

A child's weight is what recursive rejection leaves undecided: the chance that it may be kept, given all that came before it.
Leaves are asked first, so that a long path is not lost by one rejection on the way. On a chain this is Block Verification
(arXiv 2403.10444); with ``Q_j`` it is exact for RSD-C and RSD-S trees as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.noise import Choices
from draftwood.rounds import Verdict, path_table
from draftwood.tree import DRAWS_WITH_LAWS, DraftTree, Draw
from draftwood.verify.siblings import SiblingLaws, laws_at


@dataclass
class _Parents:
    """The nodes of one depth that have children, of all rows; those with most children first."""

    rows: list[int]
    nodes: list[int]
    children: list[list[int]]


@final
class Traversal:
    """Traversal verification; see the module's text."""

    name: ClassVar[str] = "traversal"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = DRAWS_WITH_LAWS

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], choices: Choices) -> Verdict:
        """``depth x branching`` batched steps that wait for no result; one draw for the path, one for the token."""
        own = torch.ones(tree.rows, tree.size, dtype=torch.float64, device=target_logp.device)
        left: dict[tuple[int, int], Tensor] = {}  # what remains of the target's law at inner nodes, up to a factor
        for parents in _levels(tree):
            laws = _pass_down(tree, parents, own, target_logp)
            left.update(zip(zip(parents.rows, parents.nodes, strict=True), laws, strict=True))
        own[:, 0] = 1.0
        orders = [_leaves_first(children) for children in tree.children]
        longest = max(map(len, orders))
        order = torch.tensor([o + [0] * (longest - len(o)) for o in orders], device=own.device)
        asked = own.gather(1, order)
        stops = asked * (1 - asked).cumprod(dim=1).roll(1, dims=1).index_fill(1, order.new_zeros(1), 1.0)
        ends = order.gather(1, choices.path(stops).unsqueeze(1)).squeeze(1).tolist()  # host sync
        laws = torch.stack([
            left[row, end] if (row, end) in left else target_logp[row, end].exp() for row, end in enumerate(ends)
        ])  # fmt: skip
        return Verdict(
            nodes=path_table([_path(parents, end) for parents, end in zip(tree.lists[1], ends, strict=True)], own.device),
            next_token=choices.token(laws),
            expected=(stops * tree.depths.gather(1, order)).sum(1) / stops.sum(1),
        )


def _levels(tree: DraftTree) -> list[_Parents]:
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
    out = []
    for level in levels:
        level.sort(key=lambda at: -len(tree.children[at[0]][at[1]]))
        rows, nodes = [row for row, _ in level], [node for _, node in level]
        out.append(_Parents(rows, nodes, [tree.children[row][node] for row, node in level]))
    return out


def _pass_down(
    tree: DraftTree, parents: _Parents, own: Float[Tensor, "row node"], target_logp: Float[Tensor, "row node vocab"]
) -> Float[Tensor, "parent vocab"]:
    """Give the children of one depth their weights (in ``own``), and put the parents' final weights in their place.

    Returns what is left of the target's law at the parents. ``scale * left`` is the weight times the normalised law.
    """
    rows = torch.tensor(parents.rows, device=own.device)
    at = (rows, torch.tensor(parents.nodes, device=own.device))
    left = laws_at(target_logp, parents.rows, parents.nodes)
    siblings = SiblingLaws(tree, parents.rows, parents.nodes, left)
    weight = own[at].unsqueeze(1)
    scale = weight / left.sum(-1, keepdim=True)
    for j in range(len(parents.children[0])):
        child = torch.tensor([c[j] for c in parents.children if len(c) > j], device=own.device)
        count = len(child)
        siblings.narrow(count)
        token = tree.tokens[rows[:count], child].unsqueeze(1)
        siblings.child(token)
        odds = scale[:count] * left[:count].gather(1, token) / siblings.left.gather(1, token) * siblings.total
        own[rows[:count], child] = odds.squeeze(1).clamp(max=1.0)
        _take_away(left[:count], scale[:count], weight[:count], siblings)
        siblings.seen(token)
    own[at] = weight.squeeze(1)
    return left


def _take_away(left: Tensor, scale: Tensor, weight: Tensor, siblings: SiblingLaws) -> None:
    """``relu(w r - Q_j)`` in place of ``r`` and ``S / (S + 1 - w)`` in place of ``w``, where ``S`` is the sum of the first.

    Where nothing remains the weight is 0 and the law stays: it is only asked at the root, where rejection was rounding.
    """
    share = torch.where(scale > 0, 1 / (scale * siblings.total), 0.0).to(left.dtype)
    less = torch.addcmul(left, siblings.left, share, value=-1).relu_()
    total = less.sum(-1, keepdim=True, dtype=scale.dtype)
    remains = scale * total
    any_left = remains > 0
    weight.copy_(torch.where(any_left, remains / (remains + (1 - weight)), 0.0))
    left.copy_(torch.where(any_left, less, left))
    scale.copy_(torch.where(any_left, weight / total, 0.0))


def _leaves_first(children: Sequence[Sequence[int]]) -> list[int]:
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
