"""Estimates that forget: a mean, a ratio of sums, a least-squares line, and the expected tokens of a draft by level.

Plain numbers, a few microseconds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from draftwood.draft.adaptive import constants


@final
class RunningMean:
    """Mean of recent values. A value above ``outlier`` times the mean counts as that much: machines have slow spells."""

    def __init__(self, value: float = 0.0, weight: float = 0.0) -> None:
        self.value, self.weight = value, weight

    def add(self, value: float) -> None:
        if self.weight:
            value = min(value, constants.OUTLIER * self.value)
        self.weight = constants.FORGET * self.weight + 1.0
        self.value += (value - self.value) / self.weight

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
class Line:
    """``y = mean + slope (x - mean_x)``, by least squares over recent observations.

    A ridge of ``prior_weight`` observations, in each of which ``x`` deviates from its mean by 1, holds the slope at its
    prior until ``x`` has varied enough.
    """

    def __init__(self, prior: float = 0.0) -> None:
        self.weight = self.mean = self.mean_x = 0.0
        self._prior = prior
        self._xx = self._xy = 0.0  # centred

    def start(self, mean: float, mean_x: float, weight: float) -> None:
        """Set the means before the first observation."""
        self.weight, self.mean, self.mean_x = weight, mean, mean_x

    def age(self, keep: float) -> None:
        """The old mean counts less; the slope stays."""
        self.weight *= keep

    def add(self, x: float, y: float) -> None:
        """Add an observation; ``y`` above ``outlier`` times the mean counts as that much."""
        forget, before = constants.FORGET, constants.FORGET * self.weight
        if before and self.mean > 0.0:
            y = min(y, constants.OUTLIER * self.mean)
        self.weight = before + 1.0
        off_x, off, share = x - self.mean_x, y - self.mean, before / self.weight
        self._xx = forget * self._xx + share * off_x * off_x
        self._xy = forget * self._xy + share * off_x * off
        self.mean_x += off_x / self.weight
        self.mean += off / self.weight

    @property
    def slope(self) -> float:
        ridge = constants.PRIOR_WEIGHT
        return (self._xy + ridge * self._prior) / (self._xx + ridge)


@final
class GainModel:
    """Expected tokens of a level, given its depth and its parents' probability; learnt from new candidates'.

    A level brings ``calibration * gain[depth] * above`` tokens. ``above`` is the probability that the text runs through its
    parents. ``reach[depth]`` is the ratio of the next level's ``above`` to this level's. Both are ratios of sums over
    recent rounds. The calibration is the ratio of accepted to expected tokens over many rounds.

    Args:
        gains, reach, calibration: known values to start from; the first two by depth.
    """

    def __init__(self, gains: Sequence[float] = (1.0,), reach: Sequence[float] = (), calibration: float = 1.0) -> None:
        self._gains = [Ratio(constants.FORGET_GAINS, gain, 1.0) for gain in gains]
        self._reach = [Ratio(constants.FORGET_GAINS, share, 1.0) for share in reach]
        self._calibration = Ratio(constants.FORGET_CALIBRATION, calibration, constants.CALIBRATION_PRIOR)
        self._above = 0.0  # of the round's last level that was recorded

    @property
    def calibration(self) -> float:
        return self._calibration.value

    def gains(self) -> tuple[float, ...]:
        """By depth, the tokens of a level per unit of probability above it."""
        return tuple(gain.value for gain in self._gains)

    def reach(self) -> tuple[float, ...]:
        """By depth, the probability above the next level per unit of probability above this one."""
        return tuple(share.value for share in self._reach)

    def at(self, depth: int) -> float:
        """Expected tokens of a level at this depth, per unit of probability above it."""
        return self.calibration * self._gains[min(depth, len(self._gains) - 1)].value

    def most(self, above: float, opening: float, price: float) -> float:
        """The expected tokens of the best number of levels, less ``opening`` for the first and ``price`` for each other."""
        calibration, total, best = self.calibration, 0.0, -opening
        for depth, gain in enumerate(self._gains):
            total += calibration * gain.value * above - (price if depth else opening)
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

    def add_verified(self, tokens: float, expected: float) -> None:
        """Record the accepted and the expected tokens of a tree."""
        self._calibration.add(tokens, expected)

    def age(self, keep: float) -> None:
        """Old values count less: the text may have changed."""
        for ratio in (*self._gains, *self._reach):
            ratio.age(keep)
