"""Timing of probes: a choice that does not pay is tried again."""

from __future__ import annotations

from typing import final

from draftwood.draft.adaptive import constants


@final
class Probe:
    """A few successive rounds of the choice that is not preferred, from time to time.

    The pause after a probe is so long that its loss stays within a share of all seconds. The first probe also waits until
    its loss is a small share of the seconds so far. The loss is that of the last probe, and at least one plain round, unless
    another one is expected.

    Args:
        wait: seconds until the first probe.

    Attributes:
        left: remaining rounds of this probe; 0 outside of one.
        size: nodes of this probe's trees, 0 before the first. All have one size: the first tree of a size is not timed.
        wait: seconds of the pause that are left.
        expected: seconds that a probe is expected to lose in this round; None: as the last one.
    """

    def __init__(self, wait: float = 0.0) -> None:
        self.left = self.size = 0
        self.wait = wait
        self.expected: float | None = None
        self._loss = self._lost = 0.0  # of the last probe, and of this one
        self._seconds = 0.0  # so far

    def due(self, plain: float) -> bool:
        """Whether a round may be part of a probe, given the seconds of a round without a tree."""
        loss = max(self._loss, plain) if self.expected is None else self.expected
        return self.left > 0 or (self.wait <= 0.0 and constants.PROBE_LOSS * self._seconds >= loss)

    def start(self) -> None:
        """Make this round part of a probe."""
        if not self.left:
            self.left, self.size, self._lost = constants.PROBE_ROUNDS, 0, 0.0

    def cancel(self) -> None:
        """End the probe: the choice is now the preferred one."""
        self.left = 0
        self.wait = self._loss = 0.0

    def end_round(self, seconds: float, lost: float, plain: float) -> None:
        """Record a round: its seconds, its loss if it was part of a probe, and those of a round without a tree."""
        self._seconds += seconds
        if not self.left:
            self.wait -= seconds
            return
        self._lost += lost
        self.left -= 1
        if not self.left:
            self._loss = max(self._lost, plain) if self.expected is None else self.expected
            self.wait = self._loss / constants.PROBE_SHARE
