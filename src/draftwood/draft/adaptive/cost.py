"""The seconds of a round: a sum of named terms, learnt by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import NamedTuple, final

from draftwood.core.estimates import Plane, RunningMean
from draftwood.draft.adaptive.learnt import Costs
from draftwood.draft.adaptive.settings import AdaptiveSettings


@final
class _Sizes:
    """The sizes of all forwards so far, as nodes of a tree: engines prepare themselves for a new one."""

    def __init__(self) -> None:
        self._seen, self._last = {0}, 0

    def add(self, nodes: int) -> tuple[bool, bool]:
        """Whether the number is another one than the last, and whether it comes up first."""
        changed, first = nodes != self._last, nodes not in self._seen
        self._seen.add(nodes)
        self._last = nodes
        return changed, first


class _Terms(NamedTuple):
    """Seconds of a tree without nodes, of each node, and of another size than the last."""

    empty: float = 0.0
    node: float = 0.0
    change: float = 0.0


@final
class _Line:
    """Seconds of trees as a plane through recent ones, over their nodes and whether their size is another one."""

    def __init__(self, settings: AdaptiveSettings, start: Costs, weight: float) -> None:
        self._plane = Plane(settings.forget, settings.outlier, settings.prior_weight, (start.node, start.change))
        self._plane.start(start.base + start.tree + start.node, 1.0, 0.0, weight)

    def add(self, nodes: int, changed: bool, seconds: float) -> None:
        self._plane.add(float(nodes), float(changed), seconds)

    def age(self, keep: float) -> None:
        self._plane.age(keep)

    def terms(self, base: float) -> _Terms:
        """The terms; an empty tree takes a plain round at least, and nodes take at most what exceeds it."""
        node, change = self._plane.slopes()
        mean, nodes = self._plane.mean, self._plane.mean_1
        node = max(0.0, min(node, max(0.0, mean - base) / nodes))
        return _Terms(max(base, mean - node * nodes), node, max(0.0, change))


@final
class _Curve:
    """Seconds of trees as a trial measured them, times the present speed of the machine.

    On a CPU a few nodes cost nothing, until arithmetic takes longer than reading the weights, and no line describes this. So
    a factor of each size is the ratio of its seconds to those of a line. Rounds without a change of size tell the speed.

    Args:
        line: the costs of the trial.
        factors: as :class:`CostModel` has them.
        speed: seconds now over those of the trial, and the weight of this.
    """

    def __init__(
        self, settings: AdaptiveSettings, line: Costs, factors: Sequence[float], speed: tuple[float, float]
    ) -> None:
        self._line, self._factors = line, factors
        self._speed = RunningMean(settings.forget, settings.outlier, *speed)
        self._change = RunningMean(settings.forget, settings.outlier, line.change, settings.prior_weight)

    def add(self, nodes: int, changed: bool, seconds: float) -> None:
        line = self._line
        expected = (line.base + line.tree + line.node * nodes) * _factor_of(self._factors, nodes)
        if changed:
            self._change.add(max(0.0, seconds / self._speed.value - expected))
        else:
            self._speed.add(seconds / expected)

    def age(self, keep: float) -> None:
        self._speed.weight *= keep

    def terms(self, _base: float) -> _Terms:
        """The terms, from which the factors are left out."""
        line, speed = self._line, self._speed.value
        return _Terms(speed * (line.base + line.tree), speed * line.node, speed * self._change.value)


@final
class CostModel:
    """Seconds of a round::

        base                                              without a tree
        (base + tree + node * nodes) * factor[nodes] + change [new size]    with one, apart from its levels
        level + frontier_node * (frontier - 1)            each level, or burst

    ``base`` is a mean of plain rounds. The other terms of trees are those of a plane through recent trees, or of a trial
    times the present speed of the machine (:class:`_Curve`). ``level`` and ``frontier_node`` are a line through recent
    levels. The past counts less and less, and outliers count as ``outlier`` means.

    The first terms are shares of the first plain rounds: those of another model, or ``first_tree``, ``first_node`` and
    ``first_level``. So a machine that is slower than before slows all terms. A forward is taken to cost ``first_node`` of a
    single token's for each further token.

    Args:
        settings: how fast the past is forgotten, and the first shares.
        known: the terms of another model.
        rows: texts of a forward.
        timed: the other model has timed trees with levels.
        factors: of sizes, from one node on, by a trial (:class:`_Curve`); without them all are 1.

    Attributes:
        base, tree, node, change, level, frontier_node: seconds, as above; 0 while unknown.
        timed: trees with levels were timed, by this model or the other one.
        factors: as given.
    """

    def __init__(
        self,
        settings: AdaptiveSettings,
        known: Costs | None = None,
        *,
        rows: int = 1,
        timed: bool = False,
        factors: Sequence[float] = (),
    ) -> None:
        self._settings = settings
        shares = _shares(settings, rows), settings.first_weight
        self.timed = timed
        self._first = shares if known is None else (known, settings.prior_weight)  # terms and their weight
        self.level = self.frontier_node = 0.0
        self._terms = _Terms()
        self._plain = RunningMean(settings.forget, settings.outlier)
        self._trees: _Line | _Curve | None = None
        self.factors = tuple(factors)
        self._levels = Plane(settings.forget, settings.outlier, settings.prior_weight)
        self._sizes = _Sizes()

    def _start(self) -> None:
        """Take over the first terms, at the present speed of the machine, as if so many trees and levels had been timed."""
        s, (first, weight) = self._settings, self._first
        speed = self._plain.value / first.base
        c = Costs(**{name: value * speed for name, value in asdict(first).items()})
        self.level, self.frontier_node = c.level, c.frontier_node
        if self.factors:
            self._trees = _Curve(s, first, self.factors, (speed, weight))
        else:
            self._trees = _Line(s, c, weight)
        self._levels = Plane(s.forget, s.outlier, s.prior_weight, (c.frontier_node, 0.0))
        self._levels.start(c.level, 0.0, 0.0, weight)

    @property
    def base(self) -> float:
        """No more than the smallest tree: plain rounds are seldom timed, and the first ones of a process are slow."""
        plain = self._plain.value
        return min(plain, self._seconds(1)) if self.factors and self._trees is not None else plain

    @property
    def tree(self) -> float:
        return max(0.0, self._terms.empty - self.base)

    @property
    def node(self) -> float:
        return self._terms.node

    @property
    def change(self) -> float:
        return self._terms.change

    def value(self) -> Costs:
        """The terms as a value."""
        return Costs(
            base=self.base,
            tree=self.tree,
            node=self.node,
            change=self.change,
            level=self.level,
            frontier_node=self.frontier_node,
        )

    def age(self, keep: float) -> None:
        """Old times of trees and levels count less: the machine may have changed."""
        if self._trees is not None:
            self._trees.age(keep)
        self._levels.age(keep)

    def add_level(self, frontier: int, seconds: float) -> None:
        """Record a level, a forward of ``frontier`` nodes."""
        levels = self._levels
        levels.add(frontier - 1.0, 0.0, seconds)
        self.frontier_node = max(0.0, levels.slopes()[0])
        self.level = max(0.0, levels.mean - self.frontier_node * levels.mean_1)

    def add_plain(self, seconds: float) -> None:
        """Record a round without a tree."""
        self._plain.add(seconds)
        if self._trees is None:
            self._start()
        self._split()

    def add_forward(self, read: int, seconds: float, *, tree: bool, drafted: bool = False) -> bool:
        """Record a round without its levels. Its forward read so many tokens per row, padding included: a tree costs what
        its forward does. It had levels if it was ``drafted``.

        Returns False where an engine's preparation for another size is no cost of the round: for a new size, and for a
        plain round after another size. Such a round is not counted.
        """
        nodes = read - 1
        changed, first = self._sizes.add(nodes)
        if first or (changed and not tree and not drafted):
            return False
        self.timed |= tree and drafted
        if tree and self._trees is not None:
            self._trees.add(nodes, changed, seconds)
            self._split()
        return True

    def beyond(self, most: int) -> list[float]:
        """Seconds by which trees of no node to ``most`` nodes exceed a plain round, apart from levels and changes."""
        base = self.base
        return list(accumulate((self._seconds(n) - base for n in range(1, most + 1)), max, initial=0.0))

    def _seconds(self, nodes: int) -> float:
        return (self._terms.empty + self._terms.node * nodes) * _factor_of(self.factors, nodes)

    def _split(self) -> None:
        """Take the terms of trees."""
        if self._trees is not None:
            self._terms = self._trees.terms(self._plain.value)


def _factor_of(factors: Sequence[float], nodes: int) -> float:
    """The factor of a size; larger trees have the last one, and without any it is 1."""
    return factors[min(nodes, len(factors)) - 1] if factors else 1.0


def _shares(s: AdaptiveSettings, rows: int) -> Costs:
    """The terms before anything was measured, in plain rounds."""
    node = s.first_node * rows / (1.0 + s.first_node * (rows - 1))
    frontier_node = s.first_level * s.first_node
    return Costs(base=1.0, tree=s.first_tree, node=node, change=0.0, level=s.first_level, frontier_node=frontier_node)
