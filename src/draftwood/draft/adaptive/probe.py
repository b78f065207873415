"""Timing of probes: a choice that does not pay is tried again."""

from __future__ import annotations

from typing import final

from draftwood.draft.adaptive.settings import AdaptiveSettings


@final
class Probe:
    """A few successive rounds of the choice that is not preferred, from time to time.

    The pause after a probe is so long that the probe's loss stays within a share of all seconds. A probe counts as a loss of
    at least one plain round.

    Args:
        settings: length of a probe, and the share.
        eager: the first pauses are short, and double until they are long enough, because a few rounds are weak evidence.

    Attributes:
        left: remaining rounds of this probe; 0 outside of one.
    """

    def __init__(self, settings: AdaptiveSettings, *, eager: bool) -> None:
        self.left = 0
        self._settings = settings
        self._eager = eager
        self._lost = self._wait = 0.0
        self._tried = 0

    @property
    def due(self) -> bool:
        """Whether a round may be part of a probe."""
        return self.left > 0 or self._wait <= 0.0

    def start(self) -> None:
        """Make this round part of a probe."""
        if not self.left:
            self.left, self._lost = self._settings.probe_rounds, 0.0

    def cancel(self) -> None:
        """End all probes: the choice is now the preferred one."""
        self.left = self._tried = 0
        self._wait = 0.0

    def pause(self, plain: float) -> None:
        """Pause as after the cheapest probe; ``plain``: seconds of a round without a draft."""
        self._wait = plain / self._settings.probe_share

    def end_round(self, seconds: float, lost: float, plain: float) -> None:
        """Record a round: its seconds, its loss if it was part of a probe, and the seconds of a plain round."""
        if not self.left:
            self._wait -= seconds
            return
        self._lost += lost
        self.left -= 1
        if self.left:
            return
        self._wait = max(self._lost, plain) / self._settings.probe_share
        if self._eager:
            self._tried += 1
            self._wait = min(self._wait, plain * 2.0 ** min(self._tried, 30))
