"""Expected tokens of a draft, by level, learnt from the path probabilities of new candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.estimates import Ratio


@final
class GainModel:
    """Expected tokens of a level, given its depth and its parents' probability.

    A level brings ``calibration * gain[depth] * above`` tokens. ``above`` is the probability that the text runs through its
    parents. ``reach[depth]`` is the ratio of the next level's ``above`` to this level's. Both are ratios of sums over
    recent rounds. The calibration is the ratio of accepted to expected tokens over many rounds.

    Args:
        gains, reach, calibration: known values to start from; the first two by depth.
    """

    def __init__(
        self,
        gains: Sequence[float] = (1.0,),
        reach: Sequence[float] = (),
        calibration: float = 1.0,
    ) -> None:
        self._gains = [Ratio(constants.FORGET_GAINS, gain, 1.0) for gain in gains]
        self._reach = [Ratio(constants.FORGET_GAINS, share, 1.0) for share in reach]
        self._calibration = Ratio(constants.FORGET_CALIBRATION, calibration, constants.CALIBRATION_PRIOR)
        self._above = 0.0  # of the last level

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

    def most(self, above: float, price: float) -> float:
        """The expected tokens of the best number of levels, less ``price`` tokens for each."""
        calibration, total, best = self.calibration, 0.0, -price
        for depth, gain in enumerate(self._gains):
            total += calibration * gain.value * above - price
            best = max(best, total)
            if depth == len(self._reach):
                break
            above *= self._reach[depth].value
        return best

    def add_reach(self, depth: int, above: float) -> None:
        """Record the probability above the level that could come next."""
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
