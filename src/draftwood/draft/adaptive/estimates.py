"""Estimates that forget: a mean, a ratio of sums, and the expected tokens of a draft by level.

Plain numbers, a few microseconds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import final

from draftwood.draft.adaptive import constants


def mean_row(rows: Sequence[Sequence[float]]) -> list[float]:
    """The means of some rows' values, place by place; a shorter row has zeros at its end."""
    return list(rows[0]) if len(rows) == 1 else [sum(nth) / len(rows) for nth in zip_longest(*rows, fillvalue=0.0)]


@final
class RunningMean:
    """Mean of recent values. A value above ``outlier`` times the mean counts as that much: machines have slow spells."""

    def __init__(self, value: float = 0.0, weight: float = 0.0) -> None:
        self.value, self.weight = value, weight

    def add(self, value: float, share: float = 1.0) -> None:
        """Record a value, which counts as a ``share`` of one."""
        if self.weight:
            value = min(value, constants.OUTLIER * self.value)
        self.weight += share * (1.0 - (1.0 - constants.FORGET) * self.weight)
        self.value += share * (value - self.value) / self.weight

    def age(self, keep: float) -> None:
        """Old values count less."""
        self.weight *= keep


@final
class Ratio:
    """Sum of recent numerators over the sum of their denominators, which start as ``value * weight`` and ``weight``."""

    def __init__(self, forget: float, value: float = 0.0, weight: float = 0.0) -> None:
        self._above, self._below = value * weight, weight
        self._forget = forget

    @property
    def value(self) -> float:
        return self._above / self._below if self._below else 0.0

    def add(self, above: float, below: float) -> None:
        self._above = self._forget * self._above + above
        self._below = self._forget * self._below + below

    def age(self, keep: float) -> None:
        """Old values count less, and the next one more."""
        self._above *= keep
        self._below *= keep

    def drift(self, share: float) -> None:
        """Move the value towards 1 by this share of the way."""
        self._above += share * (self._below - self._above)


@final
class GainModel:
    """Expected tokens of a level, given its depth and its parents' probability; learnt from what levels added to trees.

    A level brings ``gain[depth] * above`` tokens. ``above`` is the probability that the text runs through its parents.
    ``reach[depth]`` is the ratio of the next level's ``above`` to this level's. Both are ratios of sums over recent rounds.

    Args:
        gains, reach: known values to start from, by depth.
    """

    def __init__(self, gains: Sequence[float], reach: Sequence[float]) -> None:
        self._gains = [Ratio(constants.FORGET_GAINS, gain, 1.0) for gain in gains]
        self._reach = [Ratio(constants.FORGET_GAINS, share, 1.0) for share in reach]
        self._above = 0.0  # of the round's last level that was recorded

    def gains(self) -> tuple[float, ...]:
        """By depth, the tokens of a level per unit of probability above it."""
        return tuple(gain.value for gain in self._gains)

    def reach(self) -> tuple[float, ...]:
        """By depth, the probability above the next level per unit of probability above this one."""
        return tuple(share.value for share in self._reach)

    def at(self, depth: int) -> float:
        """Expected tokens of a level at this depth, per unit of probability above it."""
        return self._gains[min(depth, len(self._gains) - 1)].value

    def most(self, above: float, opening: float, price: float) -> float:
        """The expected tokens of the best number of levels, less ``opening`` for the first and ``price`` for each other."""
        total, best = 0.0, -opening
        for depth, gain in enumerate(self._gains):
            total += gain.value * above - (price if depth else opening)
            best = max(best, total)
            if depth == len(self._reach):
                break
            above *= self._reach[depth].value
        return best

    def begin_round(self) -> None:
        """Begin a round, of which no level is recorded yet."""
        self._above = 0.0

    def add_reach(self, depth: int, above: float) -> None:
        """Record the probability above the level that could come next, if the level before it was recorded."""
        if not self._above:
            return
        while len(self._reach) < depth:
            self._reach.append(Ratio(constants.FORGET_GAINS))
        self._reach[depth - 1].add(above, self._above)

    def add_refusal(self, depth: int) -> None:
        """Record that a level was not drafted: its estimate rises a little, so that it is tried again."""
        self._gains[min(depth, len(self._gains) - 1)].drift(constants.DRIFT)

    def add_level(self, depth: int, above: float, gain: float) -> None:
        """Record a level."""
        self._above = above
        while len(self._gains) <= depth:
            self._gains.append(Ratio(constants.FORGET_GAINS, self._gains[-1].value, 1.0))
        self._gains[depth].add(gain, above)

    def age(self, keep: float) -> None:
        """Old values count less: the text may have changed."""
        for ratio in (*self._gains, *self._reach):
            ratio.age(keep)
