"""How far drafting pays, from what rounds cost on this machine and what they bring.

Tokens per second are a ratio of sums, so a step of the draft pays exactly when the tokens that it is expected to bring
exceed the current speed times its seconds (Dinkelbach 1967). That decides whether another level is drafted, whether a node
is shown to the target, and whether anything is drafted at all. Only the speed depends on it, never the text.
"""

from __future__ import annotations

from typing import final

_FORGET = 0.9  # weight of the past in running means, per round
_FORGET_COSTS = 0.97
_DRIFT = 0.02
_FASTER, _SLOWEST = 0.3, 3.0  # weight of a level that took less time than the mean, and the most of it that one may count
_DOUBT, _GUESS = 4.0, 0.02
_LONGEST_PAUSE = 64  # rounds without a draft before it is tried again


@final
class Pace:
    """Running means of a drafter's costs and gains; tokens and values are means over the rows of a batch.

    Attributes:
        speed: tokens per second and row of recent rounds.
        level: seconds per drafted level.
    """

    def __init__(self) -> None:
        self.speed = 0.0
        self.level = 0.0
        self._tokens = self._seconds = 0.0
        self._catch = [1.0]  # by depth: what a level's new nodes were worth, as a share of the nodes above them
        self._fit = [0.0] * 5  # weighted sums for target seconds against nodes: 1, n, n n, t, n t
        self._pause = self._waited = 0

    @property
    def node(self) -> float:
        """Seconds that one more node costs the target: the slope of a line through recent rounds, and a guess where they
        were all of one size."""
        one, n, nn, t, nt = self._fit
        if not one:
            return 0.0
        doubt = _DOUBT * one  # as if the nodes of a round had also varied by so much, at the guessed cost
        return max(0.0, (nt - n * t / one + doubt * _GUESS * t / one) / (nn - n * n / one + doubt))

    def worth(self, depth: int, above: float) -> bool:
        """Whether a level is expected to pay that grows below nodes of this value; 1 is the root's, less what is guessed."""
        if not self.speed or not self.level:
            return True  # nothing is known yet
        at = min(depth, len(self._catch) - 1)
        cost = self.speed * self.level
        pays = self._catch[at] * above >= cost
        if depth and not pays:
            self._catch[at] += _DRIFT * (1.0 - self._catch[at])  # so that it is tried again some time
        if depth or (above < 1.0 and not pays and self._catch[at] >= cost):
            return pays  # there is nothing to be tried where only a guess stands in for the draft
        return self._try(pays)

    def _try(self, pays: bool) -> bool:
        """A draft that does not pay is tried again after pauses that double: the text may have become easier."""
        if pays:
            self._pause = self._waited = 0
        elif self._waited < self._pause:
            self._waited += 1
            return False
        else:
            self._pause, self._waited = min(_LONGEST_PAUSE, 2 * self._pause + 1), 0
        return True

    def least_value(self) -> float:
        """The value below which a node costs the target more than it brings."""
        return self.speed * self.node

    def grew(self, depth: int, above: float, brought: float, seconds: float | None) -> None:
        """A level was drafted: the value of the nodes above it, what the new ones bring beyond their cost to the target, and
        its time; None where the draft also had to read text that it had not seen."""
        while len(self._catch) <= depth:
            self._catch.append(self._catch[-1])
        if above > 0:
            self._catch[depth] += (1 - _FORGET) * (brought / above - self._catch[depth])
        if seconds is not None:
            # A machine is slower than usual now and then, never faster: what took long counts less, so that one slow level
            # does not end drafting for long.
            weight = _FASTER if seconds < self.level else 1 - _FORGET
            self.level += (min(seconds, _SLOWEST * self.level) - self.level) * weight if self.level else seconds

    def finished(self, nodes: int, tokens: float, drafting: float, seconds: float) -> None:
        """A round has its verdict: nodes shown to the target, new tokens, the time of its draft and of all until then."""
        self._tokens = _FORGET * self._tokens + tokens
        self._seconds = _FORGET * self._seconds + seconds
        self.speed = self._tokens / self._seconds if self._seconds else 0.0
        target = max(0.0, seconds - drafting)
        if self._fit[0]:
            target = min(target, _SLOWEST * self._fit[3] / self._fit[0])
        new = (1.0, nodes, nodes * nodes, target, nodes * target)
        self._fit = [_FORGET_COSTS * old + fresh for old, fresh in zip(self._fit, new, strict=True)]
