"""The seconds of a round, as curves over the sizes of its forwards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, final

from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.estimates import RunningMean

KNOTS: Final = (1, 2, 3, 5, 7, 11, 15, 23)
"""Sizes between which seconds are straight pieces; the last one goes on. With the root, trees of these fill whole tiles."""


def _place(size: int) -> tuple[int, float]:
    """The knot to the left of a size, and the size's share of the way to the next one; above 1 beyond the last."""
    left = min(bisect_right(KNOTS, size), len(KNOTS) - 1) - 1
    return left, (size - KNOTS[left]) / (KNOTS[left + 1] - KNOTS[left])


def _between(values: Sequence[float], size: int) -> float:
    """The value at a size, of those at the knots. Far beyond the last one it does not fall: errors would grow there."""
    left, share = _place(size)
    here = values[left] + share * (values[left + 1] - values[left])
    return max(here, values[-1]) if size > constants.NODES else here


@final
@dataclass(frozen=True, kw_only=True)
class Costs:
    """What rounds take. All but ``base`` are in plain rounds.

    Attributes:
        base: seconds of a plain round, that is, of one without a tree.
        trees: a round with so many nodes, the root and the levels of its tree not counted.
        back: the first plain round after one with a tree.
        opening: the first forward of the draft model, for the root.
        levels: a later one, for so many nodes.
    """

    base: float = 0.0
    trees: tuple[float, ...] = tuple(1.0 + constants.FIRST_TREE + constants.FIRST_NODE * nodes for nodes in KNOTS)
    back: float = 1.0 + constants.FIRST_BACK
    opening: float = constants.FIRST_LEVEL
    levels: tuple[float, ...] = tuple(constants.FIRST_LEVEL * (1.0 + constants.FIRST_NODE * (n - 1)) for n in KNOTS)

    def of_rows(self, rows: int) -> Costs:
        """Those of more rows, if these are of one. A forward costs what a tree of as many tokens does, and a plain one what
        that costs without what any tree does."""
        if rows == 1:
            return self
        plain = max(1.0, _between(self.trees, rows - 1) - (self.trees[0] - 1.0))
        return Costs(
            base=self.base * plain,
            trees=tuple(_between(self.trees, (nodes + 1) * rows - 1) / plain for nodes in KNOTS),
            back=self.back,
            opening=(self.opening + max(0.0, _between(self.levels, rows) - self.levels[0])) / plain,
            levels=tuple(_between(self.levels, nodes * rows) / plain for nodes in KNOTS),
        )


@final
class Curve:
    """A quantity by size: its values at the knots, times a scale.

    A slower machine changes the scale, so an observation of one size moves all. What the scale does not explain moves the
    two knots around the size. On a CPU a few nodes cost nothing, until arithmetic takes longer than reading the weights.

    Args:
        values: those at the knots.
        weight: observations that they count for.

    Attributes:
        scale: the mean ratio of recent observations to the values.
    """

    def __init__(self, values: Sequence[float], weight: float) -> None:
        self._knots = [RunningMean(value, weight) for value in values]
        self.scale = RunningMean(1.0, weight)

    @property
    def values(self) -> tuple[float, ...]:
        """Those at the knots, times the scale."""
        return tuple(self.scale.value * knot.value for knot in self._knots)

    def add(self, size: int, value: float) -> None:
        """Record an observation."""
        here = _between([knot.value for knot in self._knots], size)
        self.scale.add(value / here)
        left, share = _place(size)
        share = min(1.0, share)  # beyond the last knot it is that knot's alone
        for knot, its in zip(self._knots[left : left + 2], (1.0 - share, share), strict=True):
            knot.add(knot.value * value / (self.scale.value * here), its)


@final
class CostModel:
    """Learns :class:`Costs` from rounds. The past counts less and less, and outliers count as ``outlier`` means.

    Args:
        known: what to start from. A slower machine slows all terms, which are shares of the present plain rounds.
        weight: observations that it counts for.
        timed: it comes from trees with levels.

    Attributes:
        timed: trees with levels were timed.
    """

    def __init__(self, known: Costs, weight: float, *, timed: bool = False) -> None:
        self.timed = timed
        self._plain = RunningMean()
        self._trees, self._levels = Curve(known.trees, weight), Curve(known.levels, weight)
        self._opening, self._back = RunningMean(known.opening, weight), RunningMean(known.back, weight)
        self._seen, self._last = {0}, 0  # the numbers of nodes so far, and the last one

    def value(self) -> Costs:
        """The terms as a value."""
        return Costs(
            base=self.base,
            trees=self._trees.values,
            back=self._back.value,
            opening=self._opening.value,
            levels=self._levels.values,
        )

    @property
    def base(self) -> float:
        """Seconds of a plain round; 0 before the first."""
        return self._plain.value

    @property
    def opening(self) -> float:
        """Seconds of the first level."""
        return self.base * self._opening.value

    @property
    def back(self) -> float:
        """Seconds by which a plain round after a tree exceeds others."""
        return self.base * max(0.0, self._back.value - 1.0)

    def level(self, nodes: int) -> float:
        """Seconds of a later level."""
        return self.base * _between(self._levels.values, nodes)

    def beyond(self, most: int) -> list[float]:
        """Seconds by which rounds with trees of no node to ``most`` nodes exceed plain ones, apart from levels.

        A tree takes at most what a larger one takes. So a size that looked slow by chance is priced by the next larger one,
        and is tried again.
        """
        trees = self._trees.values
        rounds = [_between(trees, nodes) for nodes in range(1, most + 1)]
        cheapest = reversed([*accumulate(reversed(rounds), min)])
        return [0.0, *(self.base * max(0.0, plain_rounds - 1.0) for plain_rounds in cheapest)]

    def age(self, keep: float) -> None:
        """Old times of trees and levels count less: the machine may have changed."""
        for old in (self._trees.scale, self._opening, self._levels.scale):
            old.age(keep)

    def add_level(self, depth: int, frontier: int, seconds: float) -> None:
        """Record a level, a forward of ``frontier`` nodes of this depth."""
        if not self.base:
            return
        if depth:
            self._levels.add(frontier, seconds / self.base)
        else:
            self._opening.add(seconds / self.base)

    def add_plain(self, seconds: float) -> None:
        """Record a round without a tree."""
        self._plain.add(seconds)

    def add_tree(self, nodes: int, seconds: float, *, drafted: bool = False) -> bool:
        """Record a round without its levels; ``nodes`` without the root. It had levels if it was ``drafted``.

        Returns False for a new size, which is not counted: an engine's preparation for it is no cost of trees.
        """
        last, self._last = self._last, nodes
        if nodes not in self._seen:
            self._seen.add(nodes)
            return False
        if nodes:
            self.timed |= drafted
            if self.base:
                self._trees.add(nodes, seconds / self.base)
        elif last and self.base:
            self._back.add(seconds / self.base)
        return True
