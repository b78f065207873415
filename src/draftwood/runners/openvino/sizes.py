"""The number of tokens of successive forwards: the engine prepares every layer for a new one, which takes time."""

from __future__ import annotations

from typing import Final, final

from draftwood.core.estimates import RunningMean

_MOST: Final = 8  # padding tokens of a forward
_FORGET, _OUTLIER = 0.9, 2.0
_TOKEN, _CHANGE = 0.05, 0.3
"""What a token and a change cost before they are measured, as shares of a forward of few tokens. Those of a model of 135 M
parameters in bfloat16 on two cores take 14.4 ms, eight tokens 16.0, twelve 18.1, and a change of size 4.3."""


@final
class ForwardSizes:
    """Keeps the number of tokens of forwards by padding, while that takes less time than a change of it.

    Padding may take as long as one change before the size is changed, so at most twice the time of the best choice is lost
    (the ski rental problem). The seconds of each size are running means.

    Attributes:
        smallest: tokens of the smallest forward; shorter ones are padded.
    """

    def __init__(self, smallest: int = 1) -> None:
        self.smallest = smallest
        self._last = 0  # tokens of the last forward, padding included
        self._changed = False  # it had another size than the one before
        self._wasted = 0.0  # seconds by padding since the last forward without any
        self._seconds: dict[int, RunningMean] = {}
        self._change = RunningMean(_FORGET, _OUTLIER)

    def padding(self, new: int) -> int:
        """Padding tokens of the next forward, which has ``new`` others."""
        wanted = max(new, self.smallest)
        padding = self._last - wanted
        self._wasted = self._wasted + self._waste(wanted) if padding > 0 else 0.0
        self._changed = not 0 <= padding <= _MOST or self._wasted > self._cost_of_change()
        if self._changed:
            self._last, self._wasted = wanted, 0.0
        return self._last - new

    def record(self, seconds: float) -> None:
        """Record the seconds of the forward that the last :meth:`padding` was for."""
        known = self._seconds.get(self._last)
        if known is not None and self._changed:
            self._change.add(max(0.0, seconds - known.value))
            return
        if self._changed:  # without the change, as far as its cost is known
            seconds = max(0.0, seconds - self._change.value) if self._change.weight else seconds / (1.0 + _CHANGE)
        self._seconds.setdefault(self._last, RunningMean(_FORGET, _OUTLIER)).add(seconds)

    def _waste(self, new: int) -> float:
        """Seconds that the last size takes longer than ``new`` tokens."""
        longer, shorter = self._seconds.get(self._last), self._seconds.get(new)
        if longer is None or shorter is None:
            return (self._last - new) * _TOKEN * self._least()
        return max(0.0, longer.value - shorter.value)

    def _cost_of_change(self) -> float:
        return self._change.value if self._change.weight else _CHANGE * self._least()

    def _least(self) -> float:
        """Seconds of the fastest size; 0 before any is known."""
        return min((mean.value for mean in self._seconds.values()), default=0.0)
