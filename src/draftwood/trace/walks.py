"""A verifier's tests of one round, walked again from its verdict: what was compared with what.

The walks follow ``verify/recursive.py`` and ``verify/traversal.py`` for one row, in float64. They read whole distributions
at few nodes: for recursive rejection those on the path, for traversal verification those before the path's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, final

from draftwood.core.draws import Draw
from draftwood.trace.arrays import RoundArrays, Vector
from draftwood.trace.records import Trial


class Walk(NamedTuple):
    """All tests of a row.

    Attributes:
        tests: in the verifier's order, with the numbers of nodes in the tree of tensors, and without uniform numbers.
        last: the distribution of the next token, over the columns; None for the target's own.
    """

    tests: list[Trial]
    last: Vector | None


@final
class _Siblings:
    """The residual and the proposal at one node, test by test."""

    def __init__(self, arrays: RoundArrays, row: int, node: int, most: int) -> None:
        self._arrays, self._most, self._tokens = arrays, most, arrays.tree.host.tokens[row]
        self._residual, self._draft = arrays.target_vector(row, node), arrays.proposal_vector(row, node)
        self.last: Vector | None = None
        """What is left of the target's distribution; None if nothing was taken, or nothing is left."""

    def test(self, child: int, weight: float = 1.0) -> Trial:
        """The test of the next child, and its chance if it is tried now: ``min(1, weight * r / Q)``."""
        token, draft = self._tokens[child], self._draft
        target, drawn = float(self._residual[token]), 1.0 if draft is None else float(draft[token])
        ratio = weight * target
        return Trial(
            node=child,
            target_prob=min(1.0, target),
            draft_prob=min(1.0, drawn),
            chance=1.0 if ratio >= drawn and ratio > 0 else 0.0 if drawn <= 0 else ratio / drawn,
            residual=self._arrays.distribution(self._residual, self._most),
            proposal=None if draft is None else self._arrays.distribution(draft, self._most),
        )

    def reject(self, tested: Trial, weight: float = 1.0) -> float:
        """Take the child's distribution away: ``relu(weight * r - Q)``. Returns what is left of the weight."""
        token, left = self._tokens[tested.node], self._residual * weight
        if self._draft is None:
            left[token] -= 1.0
        else:
            left -= self._draft
            if self._arrays.tree.draw is Draw.WITHOUT_REPLACEMENT:
                self._draft = self._draft.copy()
                self._draft[token] = 0.0
                self._draft /= self._draft.sum() or 1.0
        left.clip(min=0.0, out=left)
        total = float(left.sum())
        self._residual = left / (total or 1.0)
        self.last = self._residual if total > 0 else None
        return total / (total + 1.0 - weight) if total > 0 else 0.0


def walk_recursive(arrays: RoundArrays, row: int, path: Sequence[int], most: int = 0) -> Walk:
    """Recursive rejection: at each node of the path, the children up to the accepted one; with the ``most`` likeliest tokens
    of distributions."""
    tests: list[Trial] = []
    last: Vector | None = None
    for node, accepted in zip((0, *path), (*path, 0), strict=True):
        below = arrays.tree.children[row][node]
        if not below:
            last = None
            break
        siblings = _Siblings(arrays, row, node, most)
        for child in below:
            tests.append(siblings.test(child))
            if child == accepted:
                break
            siblings.reject(tests[-1])
        last = siblings.last
    return Walk(tests, last)


def walk_traversal(arrays: RoundArrays, row: int, path: Sequence[int], most: int = 0) -> Walk:
    """Traversal verification: nodes from the leaves up, until one ends the path. A chance is the node's own weight."""
    end, children = path[-1] if path else 0, arrays.tree.children[row]
    tests: list[Trial] = []  # children before their parents
    last: Vector | None = None

    def ends(node: int, weight: float, tested: Trial | None) -> bool:
        """Whether the path ends at or below a node, whose test is walked with all below it."""
        nonlocal last
        siblings = _Siblings(arrays, row, node, most) if children[node] else None
        for child in children[node]:
            assert siblings is not None
            below = siblings.test(child, weight)
            if ends(child, below.chance, below):
                return True
            weight = siblings.reject(below, weight)
        if tested is not None:
            tests.append(replace(tested, chance=weight))
        if node == end and siblings is not None:
            last = siblings.last
        return node == end

    ends(0, 1.0, None)
    return Walk(tests, last)


WALKS: Final = {"recursive": walk_recursive, "traversal": walk_traversal}
"""How a verifier's tests are walked again, by its name. A matching verifier has none: it decides nothing at random."""
