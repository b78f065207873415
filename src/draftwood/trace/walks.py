"""A verifier's tests of one round, walked again from its verdict: what was compared with what.

The walks follow ``verify/recursive.py`` and ``verify/traversal.py`` for one row, in float64. They read whole distributions
at few nodes: for recursive rejection those on the path, for traversal verification those before the path's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

from draftwood.core.draws import Draw
from draftwood.trace.arrays import RoundArrays, Vector


@final
@dataclass(kw_only=True)
class Test:
    """A test of a drafted node, as in :class:`draftwood.trace.records.Trial`.

    Attributes:
        node: its number in the tree of tensors.
        residual, proposal: over the round's columns; None for the target's, or the draft's, own distribution at the parent.
        certain: it was drawn from no distribution.
    """

    node: int
    target_prob: float
    draft_prob: float
    chance: float
    residual: Vector | None
    proposal: Vector | None
    certain: bool


@final
@dataclass(kw_only=True)
class Walk:
    """All tests of a row.

    Attributes:
        tests: in the verifier's order.
        last: the distribution of the next token, over the columns; None for the target's own.
        weights: traversal verification only: the nodes in the order in which they may end the path, and each one's
            probability to do so, once it is reached.
    """

    tests: list[Test]
    last: Vector | None
    weights: dict[int, float] = field(default_factory=dict)


@final
class _Siblings:
    """The residual and the proposal at one node, test by test."""

    def __init__(self, arrays: RoundArrays, row: int, node: int) -> None:
        self._draw = arrays.tree.draw
        self._tokens = arrays.tree.host.tokens[row]
        self.residual = arrays.target_vector(row, node)
        self.total = 1.0
        self.rejected = False
        self._draft = arrays.proposal_vector(row, node)
        self._changed = False

    def test(self, child: int, weight: float = 1.0) -> Test:
        """The test of the next child, and its chance if it is tried now: ``min(1, weight * r / Q)``."""
        token = self._tokens[child]
        target = 0.0 if self.total <= 0 else float(self.residual[token]) / self.total
        total = 1.0 if self._draft is None else float(self._draft.sum())
        draft = 1.0 if self._draft is None else float(self._draft[token]) / total
        ratio = weight * target
        return Test(
            node=child,
            target_prob=min(1.0, target),
            draft_prob=min(1.0, draft),
            chance=1.0 if ratio >= draft and ratio > 0 else 0.0 if draft <= 0 else ratio / draft,
            residual=self.residual / self.total if self.rejected and self.total > 0 else None,
            proposal=None if self._draft is None or not self._changed else self._draft / total,
            certain=self._draft is None,
        )

    def reject(self, tested: Test, weight: float = 1.0) -> float:
        """Take the child's distribution away: ``relu(weight * r - Q)``. Returns what is left of the weight."""
        token = self._tokens[tested.node]
        left = self.residual * (weight / self.total) if self.total > 0 else self.residual * 0.0
        if self._draft is None:
            left[token] -= 1.0
        else:
            left -= self._draft / self._draft.sum()
            if self._draw is Draw.WITHOUT_REPLACEMENT:
                self._draft = self._draft.copy()
                self._draft[token], self._changed = 0.0, True
        left.clip(min=0.0, out=left)
        self.residual, self.total, self.rejected = left, float(left.sum()), True
        return self.total / (self.total + 1.0 - weight) if self.total > 0 else 0.0

    @property
    def last(self) -> Vector | None:
        """What is left of the target's distribution; None if nothing was taken, or nothing is left."""
        return self.residual / self.total if self.rejected and self.total > 0 else None


def walk_recursive(arrays: RoundArrays, row: int, path: Sequence[int]) -> Walk:
    """Recursive rejection: at each node of the path, the children up to the accepted one."""
    tests: list[Test] = []
    last: Vector | None = None
    for node, accepted in zip((0, *path), (*path, 0), strict=True):
        below = arrays.tree.children[row][node]
        if not below:
            last = None
            break
        siblings = _Siblings(arrays, row, node)
        for child in below:
            tests.append(siblings.test(child))
            if child == accepted:
                break
            siblings.reject(tests[-1])
        last = siblings.last
    return Walk(tests=tests, last=last)


def walk_traversal(arrays: RoundArrays, row: int, path: Sequence[int]) -> Walk:
    """Traversal verification: nodes from the leaves up, until one ends the path. A chance is the node's own weight."""
    end, children = path[-1] if path else 0, arrays.tree.children[row]
    tests: dict[int, Test] = {}
    weights: dict[int, float] = {}  # children before their parents
    last: Vector | None = None

    def ends(node: int, weight: float) -> bool:
        """Whether the path ends at or below a node, whose test is walked with all below it."""
        nonlocal last
        siblings = _Siblings(arrays, row, node) if children[node] else None
        for child in children[node]:
            assert siblings is not None
            tested = tests[child] = siblings.test(child, weight)
            if ends(child, tested.chance):
                return True
            weight = siblings.reject(tested, weight)
        weights[node] = weight if node else 1.0
        if node:
            tests[node].chance = weight
        if node == end and siblings is not None:
            last = siblings.last
        return node == end

    ends(0, 1.0)
    return Walk(tests=[tests[node] for node in weights if node], last=last, weights=weights)


WALKS: Final = {"recursive": walk_recursive, "traversal": walk_traversal}
"""How a verifier's tests are walked again, by its name. A matching verifier has none: it decides nothing at random."""
