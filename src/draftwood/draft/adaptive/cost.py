"""The seconds of a round: a sum of named terms, learnt by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import accumulate, chain, islice, repeat
from typing import Final, final

from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.estimates import Line, RunningMean
from draftwood.draft.adaptive.learnt import Costs

_TRIAL_WEIGHT: Final = 10.0  # rounds of a size that a trial counts for: it takes the faster of two
_SHARES: Final = Costs(
    base=1.0, tree=constants.FIRST_TREE, node=constants.FIRST_NODE, back=constants.FIRST_BACK, opening=constants.FIRST_LEVEL,
    level=constants.FIRST_LEVEL, frontier_node=constants.FIRST_LEVEL * constants.FIRST_NODE,
)  # fmt: skip
"""The terms of one row before anything was measured, in plain rounds."""


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
        """Whether a round has no tree after one that had, and whether the number comes up first."""
        returns, first = not nodes and self._last > 0, nodes not in self._seen
        self._seen.add(nodes)
        self._last = nodes
        return returns, first


@final
class CostModel:
    """Seconds of a round::

        base                                              without a tree
        (base + tree + node * nodes) * factor[nodes]      with one, apart from its levels
        base + back                                       without a tree, after one with a tree
        opening                                           the first level
        level + frontier_node * (frontier - 1)            each level below it

    ``base`` is a mean, and ``opening`` and ``back`` are means of its multiples. ``node`` is the slope of a line through
    recent trees, and ``tree`` is the line's height above ``base``. ``factor`` belongs to a size (:class:`Sizes`). ``level``
    and ``frontier_node`` are a line through recent levels: a drafter of blocks pays for the first, and little for others.
    The past counts less and less, and outliers count as ``outlier`` means.

    The first terms are shares of the first plain rounds: those of another model, or ``first_tree``, ``first_node``,
    ``first_back`` and ``first_level``. So a machine that is slower than before slows all terms. A forward is taken to cost
    ``first_node`` of a single token's for each further token.

    Args:
        known: the terms of another model.
        rows: texts of a forward.
        timed: the other model has timed trees with levels.
        factors: its factors of sizes, from one node on.

    Attributes:
        base, tree, node, back, opening, level, frontier_node: seconds, as above; 0 while unknown.
        timed: trees with levels were timed, by this model or the other one.
        sizes: the numbers of nodes so far, with their factors.
    """

    def __init__(
        self, known: Costs | None = None, *, rows: int = 1, timed: bool = False, factors: Sequence[float] = ()
    ) -> None:
        shares = _SHARES.of_rows(rows), constants.FIRST_WEIGHT
        self.timed = timed
        self._first = shares if known is None else (known, constants.PRIOR_WEIGHT)  # terms and their weight
        self.tree = self.node = self.level = self.frontier_node = 0.0
        self._plain, self._openings = RunningMean(), RunningMean()
        self._trees, self._levels = Line(), Line()
        self.sizes = Sizes(factors)

    def _start(self) -> None:
        """Take over the first terms, at the present speed of the machine, as if so many trees and levels had been timed."""
        first, weight = self._first
        c = Costs(**{name: value * self.base / first.base for name, value in asdict(first).items()})
        self.tree, self.node, self.level, self.frontier_node = c.tree, c.node, c.level, c.frontier_node
        self._openings = RunningMean(c.opening / c.base, weight)
        self._trees, self._levels = Line(c.node), Line(c.frontier_node)
        self._trees.start(c.base + c.tree + c.node, 1.0, weight)
        self._levels.start(c.level, 0.0, weight)
        self.sizes.back = RunningMean(1.0 + c.back / c.base, weight)

    @property
    def base(self) -> float:
        return self._plain.value

    @property
    def opening(self) -> float:
        return self.base * self._openings.value

    @property
    def back(self) -> float:
        return self.base * max(0.0, self.sizes.back.value - 1.0)

    def value(self) -> Costs:
        """The terms as a value."""
        return Costs(**{one.name: getattr(self, one.name) for one in fields(Costs)})

    def age(self, keep: float) -> None:
        """Old times of trees and levels count less: the machine may have changed."""
        for old in (self._trees, self._openings, self._levels):
            old.age(keep)

    def add_level(self, depth: int, frontier: int, seconds: float) -> None:
        """Record a level, a forward of ``frontier`` nodes of this depth."""
        if not depth:
            if self.base:
                self._openings.add(seconds / self.base)
            return
        levels = self._levels
        levels.add(frontier - 1.0, seconds)
        self.frontier_node = max(0.0, levels.slope)
        self.level = max(0.0, levels.mean - self.frontier_node * levels.mean_x)

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
        returns, first = self.sizes.add(nodes)
        if first:
            return False
        if nodes:
            self.timed |= drafted
            self._trees.add(float(nodes), seconds)
            self._split()
            if self.base:
                self.sizes.add_factor(nodes, seconds / (self.base + self.tree + self.node * nodes))
        elif returns and self.base:
            self.sizes.back.add(seconds / self.base)
        return True

    def beyond(self, most: int) -> list[float]:
        """Seconds by which trees of no node to ``most`` nodes exceed a plain round, apart from levels.

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
        beyond = max(0.0, trees.mean - self.base)
        self.node = max(0.0, min(trees.slope, beyond / trees.mean_x))
        self.tree = max(0.0, beyond - self.node * trees.mean_x) if self.base else 0.0
