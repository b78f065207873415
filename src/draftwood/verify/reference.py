"""The slow twins: each verifier written out for one row with Python numbers, in the line order of its paper.

They work on any numbers (floats, or fractions for exact enumeration) and are what the batched verifiers are tested
against. Single letters are allowed here only, each under a line that says whose letters they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.tree import DraftTree

Number: TypeAlias = Any
"""int, float or Fraction."""
Coin: TypeAlias = Callable[["PlainNode", Number, Number], bool]
"""True with probability ``min(1, second / third)`` for the node in question."""
Die: TypeAlias = Callable[[Sequence[Number]], int]
"""A token from probabilities."""


@dataclass
class PlainNode:
    """A node with its distributions and its children in draw order."""

    index: int
    token: int
    depth: int
    target: Sequence[Number]
    draft: Sequence[Number] | None
    children: list[PlainNode] = field(default_factory=list)
    drawn: bool = True


def plain_tree(tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], row: int) -> PlainNode:
    """One row of a batched tree."""
    target = target_logp[row].exp().tolist()
    draft = [] if tree.draft_logp is None else tree.draft_logp[row].exp().tolist()
    tokens, parents, depths = (t[row].tolist() for t in (tree.tokens, tree.parents, tree.depths))
    nodes = [PlainNode(i, tokens[i], depths[i], target[i], draft[i] if i < len(draft) else None) for i in range(tree.size)]
    for i, node in enumerate(nodes):
        if i and bool(tree.valid[row, i]):
            node.drawn = tree.drawn is None or bool(tree.drawn[row, i])
            nodes[parents[i]].children.append(node)
    return nodes[0]


def recursive(root: PlainNode, draw: Draw, coin: Coin, die: Die) -> tuple[list[int], int]:
    """Recursive rejection sampling: accepted nodes and the next token.

    Letters of RSD (arXiv 2402.14160, algorithm 2): ``q`` is the target's distribution, ``p`` the draft's.
    """
    node = root
    path: list[int] = []
    while True:
        q, p = list(node.target), _distribution_of_first(node, draw)
        for child in node.children:
            x = child.token
            p_j = _distribution_of_child(p, child, draw, len(q))
            if coin(child, q[x], p_j[x]):
                break
            q = _norm([max(a - b, 0) for a, b in zip(q, p_j, strict=True)]) or q
            if p is not None and draw is Draw.WITHOUT_REPLACEMENT:
                p[x] = p[x] * 0
        else:
            return path, die(q)
        path.append(child.index)
        node = child


def traversal(root: PlainNode, draw: Draw, pick: Die, die: Die) -> tuple[list[int], int]:
    """Traversal verification (arXiv 2505.12398): accepted nodes and the next token.

    ``pick`` gets the probabilities to stop at each node, children before their parents. Letters of ``docs/papers.md``: ``w``
    is a node's weight, ``r`` what is left of the target's distribution.
    """
    own, left, parents = traversal_weights(root, draw)
    order: list[int] = []

    def visit(node: PlainNode) -> None:
        for child in node.children:
            visit(child)
        order.append(node.index)

    visit(root)
    stops, going = [], 1
    for index in order:
        stops.append(own[index] * going)
        going = going * (1 - own[index])
    end = order[pick(stops)]
    path: list[int] = []
    node = end
    while node != root.index:
        path.append(node)
        node = parents[node]
    return path[::-1], die(left[end])


def traversal_weights(root: PlainNode, draw: Draw) -> tuple[dict[int, Number], dict[int, list[Number]], dict[int, int]]:
    """Per node: the probability to stop there if no node before it was taken, the distribution of the token then, its
    parent."""
    own: dict[int, Number] = {}
    left: dict[int, list[Number]] = {}
    parents: dict[int, int] = {}

    def descend(node: PlainNode, w: Number) -> None:
        r, q = list(node.target), _distribution_of_first(node, draw)
        for child in node.children:
            x = child.token
            q_j = _distribution_of_child(q, child, draw, len(r))
            parents[child.index] = node.index
            descend(child, w * r[x] / q_j[x] if w * r[x] < q_j[x] else int(w * r[x] > 0))
            d = [max(w * a - b, 0) for a, b in zip(r, q_j, strict=True)]
            s = sum(d)
            w = s / (s + (1 - w)) if s > 0 else 0
            r = _norm(d) or r
            if q is not None and draw is Draw.WITHOUT_REPLACEMENT:
                q[x] = q[x] * 0
        own[node.index], left[node.index] = w, r

    descend(root, 1)
    own[root.index] = 1
    return own, left, parents


def _distribution_of_first(node: PlainNode, draw: Draw) -> list[Number] | None:
    """What the first drawn child was drawn from, up to a factor: the draft's distribution, in a hybrid tree off the certain
    ones."""
    taken = {child.token for child in node.children if draw is Draw.HYBRID and not child.drawn}
    return None if node.draft is None else [a * 0 if x in taken else a for x, a in enumerate(node.draft)]


def _distribution_of_child(p: list[Number] | None, child: PlainNode, draw: Draw, vocab: int) -> list[Number]:
    if p is None or draw is Draw.POINT_MASS or (draw is Draw.HYBRID and not child.drawn):
        return [int(y == child.token) for y in range(vocab)]
    return _norm(p) or p


def _norm(distribution: list[Number]) -> list[Number] | None:
    total = sum(distribution)
    return [a / total for a in distribution] if total > 0 else None


def match(root: PlainNode, choose: Callable[[PlainNode], int]) -> tuple[list[int], int]:
    """Follow the child that equals the target's choice at each node (greedy and coupled verification).

    ``choose`` is ``argmax p`` at temperature 0 (survey, arXiv 2401.07851: accept while ``y_hat = y``), and
    ``argmax(log p + G_t)`` under shared noise.
    """
    node = root
    path: list[int] = []
    while True:
        y = choose(node)
        y_hat = [child for child in node.children if child.token == y]
        if not y_hat:
            return path, y
        # Equal siblings exist only among independent draws; the longest continuation is kept, the first one of equals.
        ends = [match(child, choose) for child in y_hat]
        best = max(range(len(ends)), key=lambda i: len(ends[i][0]))
        return [*path, y_hat[best].index, *ends[best][0]], ends[best][1]


def tolerance(root: PlainNode, beta: int, tau: float) -> tuple[list[int], int]:
    """Spec-Verification: accepted nodes and the next token.

    Letters of SpecDec (arXiv 2203.16487, section 3.2): ``S`` holds the ``beta`` best tokens of a place whose log-probability
    is within ``tau`` of the best. There a draft is a chain; of several children in ``S`` the likeliest is followed.
    """
    node = root
    path: list[int] = []
    while True:
        p = node.target
        best = sorted(range(len(p)), key=lambda y: -p[y])
        least = math.log(p[best[0]]) - tau
        S = [y for y in best[:beta] if p[y] > 0 and math.log(p[y]) >= least]  # noqa: N806
        kept = [child for child in node.children if child.token in S]
        if not kept:
            return path, best[0]
        node = max(kept, key=lambda child: p[child.token])
        path.append(node.index)
