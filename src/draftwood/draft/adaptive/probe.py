"""When the choice that does not pay is tried again."""

from __future__ import annotations

from typing import final

from draftwood.draft.adaptive.settings import AdaptiveSettings


@final
class Probe:
    """A few rounds in turn of a choice that is not the preferred one, from time to time.

    After a probe comes a pause, so long that what the probe lost stays within a share of all seconds. A probe counts as a
    loss of one plain round at least.

    Args:
        settings: length of a probe, and the share.
        eager: the first pauses are short, and double until they are long enough: a choice is not given up for long on the
            strength of a few rounds.

    Attributes:
        left: rounds of this probe that are still to come; 0 outside of one.
    """

    def __init__(self, settings: AdaptiveSettings, *, eager: bool) -> None:
        self.left = 0
        self._settings = settings
        self._eager = eager
        self._lost = self._wait = 0.0
        self._tried = 0

    @property
    def due(self) -> bool:
        """Whether a round may be one of a probe."""
        return self.left > 0 or self._wait <= 0.0

    def start(self) -> None:
        """This round is one of a probe."""
        if not self.left:
            self.left, self._lost = self._settings.probe_rounds, 0.0

    def cancel(self) -> None:
        """The choice is the preferred one now."""
        self.left = self._tried = 0
        self._wait = 0.0

    def pause(self, plain: float) -> None:
        """As after a probe that lost no more than it had to; ``plain`` seconds of a round without a draft."""
        self._wait = plain / self._settings.probe_share

    def end_round(self, seconds: float, lost: float, plain: float) -> None:
        """A round is over: its seconds, those it lost if it was one of a probe, and those of a plain round."""
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
