"""The seconds of a round: a sum of named terms, learnt by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from itertools import accumulate, chain, islice, repeat
from typing import Final, final

from draftwood.core.estimates import Plane, RunningMean
from draftwood.draft.adaptive.learnt import NOTHING, Costs
from draftwood.draft.adaptive.level_cost import LevelCost
from draftwood.draft.adaptive.settings import AdaptiveSettings

_TRIAL_WEIGHT: Final = 10.0  # rounds of a size that a trial counts for: it takes the faster of two


class Size(Enum):
    """The size of a forward: as the one before, another one, or one that comes up first."""

    SAME, CHANGED, FIRST = range(3)


@final
class _Sizes:
    """The sizes of all forwards so far, as tokens of a row without the root: engines prepare themselves for a new size.

    A factor of a size is the ratio of its trees' seconds to those of the line through all sizes. On a CPU a few nodes cost
    nothing, until arithmetic takes longer than reading the weights, and no line describes this. A trial measures factors.
    Rounds change them slowly: a size that looks slow by chance would not be tried again.

    Args:
        settings: how fast the past is forgotten.
        factors: those of a trial, from one node on; without them all are 1.

    Attributes:
        back: seconds of first rounds without a tree after one with a tree, in plain rounds.
    """

    def __init__(self, settings: AdaptiveSettings, factors: Sequence[float]) -> None:
        self._seen: set[int] = {0}
        self._last: int | None = 0
        self._plain: int | None = None  # the smallest size of a round without a tree
        self._tree = False  # the last round had a tree
        self.back = RunningMean(settings.forget, settings.outlier)
        self._factors = [RunningMean(settings.forget, settings.outlier, factor, _TRIAL_WEIGHT) for factor in factors]

    def begin_text(self) -> None:
        """Begin a text, whose first forward reads a prompt."""
        self._last = None

    def add(self, read: int, *, tree: bool) -> tuple[Size, bool]:
        """Record a forward; returns its size, and whether it is the first one without a tree after one with a tree."""
        size = Size.FIRST if read not in self._seen else Size.SAME if read == self._last else Size.CHANGED
        back = self._tree and not tree
        self._seen.add(read)
        self._last, self._tree = read, tree
        return size, back

    def padding(self, read: int) -> int:
        """Padding tokens of a row in a round without a tree."""
        self._plain = read if self._plain is None else min(read, self._plain)
        return read - self._plain

    def add_factor(self, nodes: int, factor: float) -> None:
        """Record a tree."""
        if nodes <= len(self._factors):
            self._factors[nodes - 1].add(factor)

    @property
    def factors(self) -> tuple[float, ...]:
        """From one node on; larger trees have the last one."""
        return tuple(mean.value for mean in self._factors)


@final
class CostModel:
    """Seconds of a round::

        base                                              without a tree
        (base + tree + node * nodes) * factor[nodes] + change [new size]    with one, apart from its levels
        base + back                                       without a tree, after one with a tree
        begin [first] + level + frontier_node * (frontier - 1)    each level, or burst (:class:`LevelCost`)

    ``base`` is a mean of plain rounds. ``node`` and ``change`` are slopes of a plane through recent trees, and ``tree`` is
    the plane's height above ``base``. ``factor`` belongs to a size (:class:`_Sizes`), and ``back`` is a mean. The past counts
    less and less, and outliers count as ``outlier`` means.

    The first terms are shares of the first plain rounds: those of another model, or ``first_tree``, ``first_node``,
    ``first_back`` and ``first_level``. So a machine that is slower than before slows all terms. A forward is taken to cost
    ``first_node`` of a single token's for each further token.

    Args:
        settings: how fast the past is forgotten, and the first shares.
        known: the terms of another model.
        rows: texts of a forward.
        timed: the other model has timed trees with levels.
        factors: its factors of sizes, from one node on.

    Attributes:
        base, tree, node, change, back, begin, level, frontier_node: seconds, as above; 0 while unknown.
        timed: trees with levels were timed, by this model or the other one.
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
        self.tree = self.node = self.change = 0.0
        self._plain = RunningMean(settings.forget, settings.outlier)
        self._trees = Plane(settings.forget, settings.outlier, settings.prior_weight)
        self._levels = LevelCost(settings, NOTHING.costs, 0.0)
        self._sizes = _Sizes(settings, factors)

    def _start(self) -> None:
        """Take over the first terms, at the present speed of the machine, as if so many trees and levels had been timed."""
        s, (first, weight) = self._settings, self._first
        c = Costs(**{name: value * self.base / first.base for name, value in asdict(first).items()})
        self.tree, self.node, self.change = c.tree, c.node, c.change
        self._trees = Plane(s.forget, s.outlier, s.prior_weight, (c.node, c.change))
        self._levels = LevelCost(s, c, weight)
        self._trees.start(c.base + c.tree + c.node, 1.0, 0.0, weight)
        self._sizes.back.start(1.0 + c.back / c.base, weight)

    @property
    def base(self) -> float:
        return self._plain.value

    @property
    def back(self) -> float:
        return self.base * max(0.0, self._sizes.back.value - 1.0)

    @property
    def begin(self) -> float:
        return self._levels.begin

    @property
    def level(self) -> float:
        return self._levels.level

    @property
    def frontier_node(self) -> float:
        return self._levels.frontier_node

    def value(self) -> Costs:
        """The terms as a value."""
        return Costs(
            base=self.base,
            tree=self.tree,
            node=self.node,
            change=self.change,
            back=self.back,
            begin=self.begin,
            level=self.level,
            frontier_node=self.frontier_node,
        )

    def age(self, keep: float) -> None:
        """Old times of trees and levels count less: the machine may have changed."""
        self._trees.age(keep)
        self._levels.age(keep)

    def add_level(self, depth: int, frontier: int, seconds: float) -> None:
        """Record a level, a forward of ``frontier`` nodes."""
        self._levels.add(depth, frontier, seconds)

    def begin_text(self) -> None:
        """Begin a text."""
        self._sizes.begin_text()

    def add_plain(self, read: int, seconds: float) -> None:
        """Record a round without a tree, of the same size as the round before; padding costs as much as nodes."""
        self._plain.add(max(0.0, seconds - self.node * self._sizes.padding(read)))
        if not self._trees.weight:
            self._start()
        self._split()

    def add_tree(self, nodes: int, read: int, seconds: float, *, drafted: bool = False) -> Size:
        """Record a round without its levels; it had levels if it was ``drafted``.

        Args:
            nodes: nodes of the tree, without the root.
            read: the same with padding, for which the seconds count.

        Returns the size; the first round of one is not counted, as an engine's preparation for it is no cost of trees.
        """
        size, back = self._sizes.add(read, tree=nodes > 0)
        if size is Size.FIRST:
            return size
        if nodes:
            self.timed |= drafted
            self._trees.add(float(read), float(size is Size.CHANGED), seconds)
            self._split()
            if self.base and size is Size.SAME:
                self._sizes.add_factor(read, seconds / (self.base + self.tree + self.node * read))
        elif back and self.base:
            self._sizes.back.add(seconds / self.base)
        return size

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors of sizes, from one node on."""
        return self._sizes.factors

    def beyond(self, most: int) -> list[float]:
        """Seconds by which trees of no node to ``most`` nodes exceed a plain round, apart from levels and changes."""
        factors = self.factors or (1.0,)
        sized = enumerate(islice(chain(factors, repeat(factors[-1])), most), 1)
        seconds = ((self.base + self.tree + self.node * nodes) * factor - self.base for nodes, factor in sized)
        return list(accumulate(seconds, max, initial=0.0))

    def fixed(self, nodes: int) -> float:
        """The seconds of a tree of so many nodes beyond a plain round, less ``node`` for each of them."""
        return self.beyond(nodes)[-1] - self.node * nodes

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


def _shares(s: AdaptiveSettings, rows: int) -> Costs:
    """The terms before anything was measured, in plain rounds."""
    node = s.first_node * rows / (1.0 + s.first_node * (rows - 1))
    frontier_node = s.first_level * s.first_node
    return Costs(
        base=1.0,
        tree=s.first_tree,
        node=node,
        change=0.0,
        back=s.first_back,
        begin=0.0,
        level=s.first_level,
        frontier_node=frontier_node,
    )
