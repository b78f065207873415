"""The slow twins: each verifier written out for one row with Python numbers, in the line order of its paper.

They work on any numbers: floats, or fractions for exact enumeration. The batched verifiers are tested against them. Single
letters are allowed here only; each function names the paper whose letters it uses.
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
"""Of a node, ``p`` and ``q``: True with probability ``min(1, p / q)``."""
Die: TypeAlias = Callable[[Sequence[Number]], int]
"""From probabilities, the index of one of them."""


@dataclass
class PlainNode:
    """A node with its distributions and its children in draw order."""

    index: int
    token: int
    depth: int
    target: Sequence[Number]
    draft: Sequence[Number] | None
    children: list[PlainNode] = field(default_factory=list)


def plain_tree(tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], row: int) -> PlainNode:
    """One row of a batched tree."""
    target = target_logp[row].exp().tolist()
    draft = [] if tree.draft_logp is None else tree.draft_logp[row].exp().tolist()
    tokens, parents, depths = (t[row].tolist() for t in (tree.tokens, tree.parents, tree.depths))
    nodes = [PlainNode(i, tokens[i], depths[i], target[i], draft[i] if i < len(draft) else None) for i in range(tree.size)]
    for i, node in enumerate(nodes):
        if i and bool(tree.valid[row, i]):
            nodes[parents[i]].children.append(node)
    return nodes[0]


def recursive(root: PlainNode, draw: Draw, coin: Coin, die: Die) -> tuple[list[int], int]:
    """Recursive rejection sampling: accepted nodes and the next token.

    Letters of RSD (arXiv 2402.14160, algorithm 2): ``q`` is the target's distribution, ``p`` the draft's.
    """
    node = root
    path: list[int] = []
    while True:
        q, p = list(node.target), None if node.draft is None else list(node.draft)
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

    ``pick`` receives the probabilities to stop at each node, children before their parents. Letters of ``docs/glossary.md``:
    ``w`` is a node's weight, the probability to stop there if no earlier one was taken, and ``r`` the residual of the
    target's distribution, which the next token then follows.
    """
    weights: dict[int, Number] = {}  # children before their parents
    residuals: dict[int, list[Number]] = {}
    parents: dict[int, int] = {}

    def descend(node: PlainNode, w: Number) -> None:
        r, q = list(node.target), None if node.draft is None else list(node.draft)
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
        weights[node.index], residuals[node.index] = w, r

    descend(root, 1)
    weights[root.index] = 1
    stops, going = [], 1
    for w in weights.values():
        stops.append(w * going)
        going = going * (1 - w)
    node = end = list(weights)[pick(stops)]
    path: list[int] = []
    while node != root.index:
        path.append(node)
        node = parents[node]
    return path[::-1], die(residuals[end])


def _distribution_of_child(p: list[Number] | None, child: PlainNode, draw: Draw, vocab: int) -> list[Number]:
    if p is None or draw is Draw.POINT_MASS:
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
        # Siblings are equal only among independent draws. The longest path is kept, the first if several.
        ends = [match(child, choose) for child in y_hat]
        best = max(range(len(ends)), key=lambda i: len(ends[i][0]))
        return [*path, y_hat[best].index, *ends[best][0]], ends[best][1]


def tolerance(root: PlainNode, beta: int, tau: float) -> tuple[list[int], int]:
    """Spec-Verification: accepted nodes and the next token.

    Letters of SpecDec (arXiv 2203.16487, section 3.2): ``S`` holds those of the ``beta`` best tokens whose log-probability
    is within ``tau`` of the best. The paper drafts a chain; here the likeliest of several children in ``S`` is followed.
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
