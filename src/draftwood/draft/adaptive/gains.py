"""What drafting brings: tokens per level, learnt from the path probabilities of the candidates that came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from draftwood.draft.adaptive.estimates import Ratio
from draftwood.draft.adaptive.settings import AdaptiveSettings


@final
class GainModel:
    """Expected tokens of a level below nodes of a given probability, by depth.

    A level brings ``calibration * gain[depth] * above`` tokens. ``above`` is the probability that the text runs through the
    nodes it grows below; ``reach[depth]`` says which part of that the next level has above it. Both are ratios of sums over
    recent rounds. The calibration is that of accepted to expected tokens over many rounds.

    Args:
        settings: how fast the past is forgotten.
        gains, reach: by depth, where they are known already.
        calibration: where it is known already.
    """

    def __init__(
        self,
        settings: AdaptiveSettings,
        gains: Sequence[float] = (1.0,),
        reach: Sequence[float] = (),
        calibration: float = 1.0,
    ) -> None:
        self._settings = settings
        self._gains = [Ratio(settings.forget_gains, gain, 1.0) for gain in gains]
        self._reach = [Ratio(settings.forget_gains, share, 1.0) for share in reach]
        self._calibration = Ratio(settings.forget_calibration, calibration, settings.calibration_prior)
        self._above = 0.0  # the level that was drafted last

    @property
    def calibration(self) -> float:
        return self._calibration.value

    def gains(self) -> tuple[float, ...]:
        """By depth, tokens that a level brings per unit of probability above it."""
        return tuple(gain.value for gain in self._gains)

    def reach(self) -> tuple[float, ...]:
        """By depth, the probability above the next level per unit of probability above this one."""
        return tuple(share.value for share in self._reach)

    def at(self, depth: int) -> float:
        """Expected tokens of a level at this depth, per unit of probability above it."""
        return self.calibration * self._gains[min(depth, len(self._gains) - 1)].value

    def most(self, above: float, price: float) -> float:
        """The most that a draft is expected to bring, in tokens, where each level costs ``price`` of them."""
        calibration, total, best = self.calibration, 0.0, -price
        for depth, gain in enumerate(self._gains):
            total += calibration * gain.value * above - price
            best = max(best, total)
            if depth == len(self._reach):
                break
            above *= self._reach[depth].value
        return best

    def arrived(self, depth: int, above: float) -> None:
        """A level was drafted, and the next one would grow below nodes of this probability."""
        while len(self._reach) < depth:
            self._reach.append(Ratio(self._settings.forget_gains))
        self._reach[depth - 1].add(above, self._above)

    def refused(self, depth: int) -> None:
        """A level was not drafted; its estimate rises a little, so that it is tried again some time."""
        self._gains[min(depth, len(self._gains) - 1)].drift(self._settings.drift)

    def brought(self, depth: int, above: float, gain: float) -> None:
        """A level was drafted."""
        self._above = above
        while len(self._gains) <= depth:
            self._gains.append(Ratio(self._settings.forget_gains, self._gains[-1].value, 1.0))
        self._gains[depth].add(gain, above)

    def accepted(self, tokens: float, expected: float) -> None:
        """A drafted tree was verified."""
        self._calibration.add(tokens, expected)

    def age(self, keep: float) -> None:
        """Nothing was drafted for long, and the text may be another one now."""
        for ratio in (*self._gains, *self._reach):
            ratio.age(keep)
