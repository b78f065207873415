"""The seconds of a round: a sum of named terms, learnt by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import accumulate, chain, islice, repeat
from typing import Final, final

from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.estimates import Plane, RunningMean
from draftwood.draft.adaptive.learnt import Costs

_TRIAL_WEIGHT: Final = 10.0  # rounds of a size that a trial counts for: it takes the faster of two


@final
class Sizes:
    """The numbers of nodes of all trees so far: engines prepare themselves for a new size of a forward.

    A factor of a size is the ratio of its trees' seconds to those of the line through all sizes. On a CPU a few nodes cost
    nothing, until arithmetic takes longer than reading the weights, and no line describes this. A trial measures factors.
    Rounds change them slowly: a size that looks slow by chance would not be tried again.

    Args:
        factors: those of a trial, from one node on; without them all are 1.

    Attributes:
        back: seconds of first rounds without a tree after one with a tree, in plain rounds.
    """

    def __init__(self, factors: Sequence[float]) -> None:
        self._seen, self._last = {0}, 0
        self.back = RunningMean()
        self._factors = [RunningMean(factor, _TRIAL_WEIGHT) for factor in factors]

    def add_factor(self, nodes: int, factor: float) -> None:
        """Record a tree."""
        if nodes <= len(self._factors):
            self._factors[nodes - 1].add(factor)

    @property
    def factors(self) -> tuple[float, ...]:
        """From one node on; larger trees have the last one."""
        return tuple(mean.value for mean in self._factors)

    def add(self, nodes: int) -> tuple[bool, bool]:
        """Whether the number is another one than the last, and whether it comes up first."""
        changed, first = nodes != self._last, nodes not in self._seen
        self._seen.add(nodes)
        self._last = nodes
        return changed, first


@final
class CostModel:
    """Seconds of a round::

        base                                              without a tree
        (base + tree + node * nodes) * factor[nodes] + change [new size]    with one, apart from its levels
        base + back                                       without a tree, after one with a tree
        level + frontier_node * (frontier - 1)            each level

    ``base`` is a mean of plain rounds. ``node`` and ``change`` are slopes of a plane through recent trees, and ``tree`` is
    the plane's height above ``base``. ``factor`` belongs to a size (:class:`Sizes`). ``level`` and ``frontier_node`` are a
    line through recent levels. ``back`` is a mean. The past counts less and less, and outliers count as ``outlier`` means.

    The first terms are shares of the first plain rounds: those of another model, or ``first_tree``, ``first_node``,
    ``first_back`` and ``first_level``. So a machine that is slower than before slows all terms. A forward is taken to cost
    ``first_node`` of a single token's for each further token.

    Args:
        known: the terms of another model.
        rows: texts of a forward.
        timed: the other model has timed trees with levels.
        factors: its factors of sizes, from one node on.

    Attributes:
        base, tree, node, change, back, level, frontier_node: seconds, as above; 0 while unknown.
        timed: trees with levels were timed, by this model or the other one.
        sizes: the numbers of nodes so far, with their factors.
    """

    def __init__(
        self, known: Costs | None = None, *, rows: int = 1, timed: bool = False, factors: Sequence[float] = ()
    ) -> None:
        shares = _shares(rows), constants.FIRST_WEIGHT
        self.timed = timed
        self._first = shares if known is None else (known, constants.PRIOR_WEIGHT)  # terms and their weight
        self.tree = self.node = self.change = self.level = self.frontier_node = 0.0
        self._plain = RunningMean()
        self._trees = Plane()
        self._levels = Plane()
        self.sizes = Sizes(factors)

    def _start(self) -> None:
        """Take over the first terms, at the present speed of the machine, as if so many trees and levels had been timed."""
        first, weight = self._first
        c = Costs(**{name: value * self.base / first.base for name, value in asdict(first).items()})
        self.tree, self.node, self.change = c.tree, c.node, c.change
        self.level, self.frontier_node = c.level, c.frontier_node
        self._trees = Plane((c.node, c.change))
        self._levels = Plane((c.frontier_node, 0.0))
        self._trees.start(c.base + c.tree + c.node, 1.0, 0.0, weight)
        self._levels.start(c.level, 0.0, 0.0, weight)
        self.sizes.back = RunningMean(1.0 + c.back / c.base, weight)

    @property
    def base(self) -> float:
        return self._plain.value

    @property
    def back(self) -> float:
        return self.base * max(0.0, self.sizes.back.value - 1.0)

    def value(self) -> Costs:
        """The terms as a value."""
        return Costs(**{one.name: getattr(self, one.name) for one in fields(Costs)})

    def age(self, keep: float) -> None:
        """Old times of trees and levels count less: the machine may have changed."""
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
        if not self._trees.weight:
            self._start()
        self._split()

    def add_tree(self, nodes: int, seconds: float, *, drafted: bool = False) -> bool:
        """Record a round without its levels; ``nodes`` without the root. It had levels if it was ``drafted``.

        Returns False for a new size, which is not counted: an engine's preparation for it is no cost of trees.
        """
        changed, first = self.sizes.add(nodes)
        if first:
            return False
        if nodes:
            self.timed |= drafted
            self._trees.add(float(nodes), float(changed), seconds)
            self._split()
            if self.base and not changed:
                self.sizes.add_factor(nodes, seconds / (self.base + self.tree + self.node * nodes))
        elif changed and self.base:
            self.sizes.back.add(seconds / self.base)
        return True

    def beyond(self, most: int) -> list[float]:
        """Seconds by which trees of no node to ``most`` nodes exceed a plain round, apart from levels and changes.

        A tree takes at most what a larger one takes. So a size that looked slow by chance is priced by the next larger one,
        and is tried again.
        """
        factors = self.sizes.factors or (1.0,)
        sized = enumerate(islice(chain(factors, repeat(factors[-1])), most), 1)
        seconds = [(self.base + self.tree + self.node * nodes) * factor - self.base for nodes, factor in sized]
        return [0.0, *reversed([*accumulate(reversed(seconds), min)])]

    def _split(self) -> None:
        """Divide the trees' seconds among the terms. None is negative, and nodes take at most what exceeds plain rounds."""
        trees = self._trees
        if not trees.weight:
            return
        node, change = trees.slopes()
        beyond = max(0.0, trees.mean - self.base)
        self.node = max(0.0, min(node, beyond / trees.mean_1))
        self.change = max(0.0, change)
        self.tree = max(0.0, beyond - self.node * trees.mean_1) if self.base else 0.0


def _shares(rows: int) -> Costs:
    """The terms before anything was measured, in plain rounds."""
    node = constants.FIRST_NODE * rows / (1.0 + constants.FIRST_NODE * (rows - 1))
    return Costs(
        base=1.0, tree=constants.FIRST_TREE, node=node, back=constants.FIRST_BACK, level=constants.FIRST_LEVEL,
        frontier_node=constants.FIRST_LEVEL * constants.FIRST_NODE,
    )  # fmt: skip
