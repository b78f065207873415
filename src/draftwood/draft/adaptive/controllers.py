"""Controllers by the size of a batch, whose costs depend on its rows, and rounds that only measure what trees cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, final

import numpy as np

from draftwood.draft.adaptive.budget import Budget
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.cost import KNOTS, Costs
from draftwood.draft.adaptive.expand import AcceptanceModel
from draftwood.draft.adaptive.learnt import NOTHING, Knowledge, Learnt
from draftwood.draft.adaptive.lookup import PromptLookup

PLAIN: Final = 0
_GROUP: Final = 3  # rounds of one size; the first is not counted
_SIZES: Final = ((2, 3), (5, 7), (11, 15), (23,))  # nodes without the root
TRIAL: Final[Sequence[int]] = (
    *(PLAIN,) * 4,  # the first reads the prompt
    *(size for sizes in _SIZES for size in (*(nodes for nodes in sizes for _ in range(_GROUP)), PLAIN, PLAIN)),
)
"""Nodes of a trial's trees without the root, by round."""


@final
class Controllers:
    """A controller for each number of rows, rounded up to a power of two, and the models that they share.

    Args:
        known: the knowledge of others, to start from.
        budget: that of all rounds, in place of controllers.

    Attributes:
        acceptance: the acceptance model of the tree's expander.
        lookup: prompt lookup, with its learnt probabilities.
    """

    def __init__(self, known: Knowledge | None = None, *, budget: Budget | None = None) -> None:
        self.acceptance = AcceptanceModel(known.acceptance if known else None)
        self.lookup = PromptLookup(hits=known.hits, guesses=known.guesses) if known else PromptLookup()
        self._known = dict(known.by_rows) if known else {}
        self._made: dict[int, Controller] = {}
        self._budget = budget

    def budget(self, rows: int) -> Budget:
        """The budget of rounds of ``rows`` texts: their controller, or what is in place of it, such as a trial."""
        return self._budget or self.at(rows)

    @contextmanager
    def trial(self) -> Iterator[CostTrial]:
        """A context in which rounds of one row measure costs. A new controller starts from them.

        Prompt lookup learns nothing: how often a text of such a trial repeats itself says nothing about others.
        """
        self._budget = trial = CostTrial()
        before = list(self.lookup.hits), list(self.lookup.guesses)
        try:
            yield trial
        finally:
            self._budget = None
            self.lookup.hits, self.lookup.guesses = before
        self.begin_with(trial)

    def begin_with(self, trial: CostTrial) -> None:
        """Start from what a trial has measured, if it has."""
        if (costs := trial.costs) is not None:
            self._known[1] = replace(self.at(1).learnt, costs=costs, timed=True)
            del self._made[1]

    def at(self, rows: int) -> Controller:
        """The controller of rounds with so many rows. A new one knows what the draft brings in other batches."""
        size = 1 << (rows - 1).bit_length()
        if size not in self._made:
            learnt = self._known.get(size)
            if learnt is None and (others := self._learnt()):
                near = others[min(others, key=lambda other: abs(other.bit_length() - size.bit_length()))]
                learnt = replace(NOTHING, gains=near.gains, reach=near.reach)
                if 1 in others and others[1].timed:
                    learnt = replace(learnt, costs=others[1].costs.of_rows(size))
            self._made[size] = Controller(learnt, rows=size)
        return self._made[size]

    @property
    def knowledge(self) -> Knowledge:
        """The current knowledge."""
        return Knowledge(
            by_rows=self._learnt(),
            acceptance=tuple(self.acceptance.weights),
            hits=tuple(self.lookup.hits),
            guesses=tuple(self.lookup.guesses),
        )

    def _learnt(self) -> dict[int, Learnt]:
        return self._known | {size: made.learnt for size, made in self._made.items() if made.costs.base}


@final
class CostTrial(Budget):
    """A budget whose trees have the sizes of a trial. Only their costs are measured.

    Of equal rounds the fastest counts: other processes may delay one. Rounds after the trial have no tree.
    """

    def __init__(self) -> None:
        self._sizes = iter(TRIAL)
        self._size = self._last = PLAIN
        self._rounds: dict[int, float] = {}  # size of a tree -> seconds of a round without its levels
        self._back = math.inf  # seconds of a round without a tree after one with a tree
        self._levels: dict[tuple[int, int], float] = {}  # depth and nodes of a forward -> seconds

    def begin_round(self) -> bool:
        self._last, self._size = self._size, next(self._sizes, PLAIN)
        return self._size == PLAIN

    def shows_guess(self, chains: Sequence[Sequence[float]]) -> bool:
        return False

    def end_level(self, depth: int, above: float, values: Sequence[float], nodes: int, seconds: float | None) -> None:
        if seconds is not None:
            self._levels[depth, nodes] = min(seconds, self._levels.get((depth, nodes), math.inf))

    def tree_size(self, values: Sequence[float]) -> int:
        return min(self._size, len(values))

    def end_round(self, nodes: int, tokens: float, drafting: float, seconds: float) -> None:
        if self._last == self._size:  # else engines have prepared themselves for a new size
            self._rounds[nodes - 1] = min(seconds - drafting, self._rounds.get(nodes - 1, math.inf))
        elif self._size == PLAIN:
            self._back = min(self._back, seconds)

    @property
    def costs(self) -> Costs | None:
        """What was measured; None if the text ended before there was a tree of a known size."""
        rounds, levels = dict(self._rounds), self._levels
        base = rounds.pop(PLAIN, 0.0)
        if not (base and rounds and levels):
            return None
        opening = min(seconds for (depth, _), seconds in levels.items() if not depth)
        later = {nodes: seconds for (depth, nodes), seconds in sorted(levels.items(), reverse=True) if depth}
        return Costs(
            base=base,
            trees=_at_knots(rounds, base),
            back=max(1.0, self._back / base) if self._back < math.inf else 1.0,
            opening=opening / base,
            levels=_at_knots(later or {1: opening}, base),
        )


def _at_knots(seconds: Mapping[int, float], base: float) -> tuple[float, ...]:
    """By knot, seconds by size in plain rounds; beyond the largest size they go on as from half of it on."""
    sizes = sorted(seconds)
    found = [seconds[size] / base for size in sizes]
    largest, half = sizes[-1], sizes[-1] / 2
    slope = max(0.0, found[-1] - float(np.interp(half, sizes, found))) / half
    return tuple(float(np.interp(knot, sizes, found)) + slope * max(0, knot - largest) for knot in KNOTS)
