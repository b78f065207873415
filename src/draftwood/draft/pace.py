"""How far drafting pays, from what rounds cost on this machine and what they bring.

Tokens per second are a ratio of sums, so a step of the draft pays exactly when the tokens that it is expected to bring
exceed the current speed times its seconds (Dinkelbach 1967). That decides whether another level is drafted, whether a node
is shown to the target, and whether anything is drafted at all. Only the speed depends on it, never the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile, zip_longest
from operator import mul
from typing import final

_FORGET = 0.9  # weight of the past in running means, per round
_FORGET_COSTS = 0.97
_FORGET_WHOLE = 0.95
_FORGET_TRUST, _TRUST = 0.99, 3.0  # tokens that at first count as both expected and seen
_FADE = 0.999  # what is left of that knowledge after a round without a draft
_HOPE = 1.0  # accepted tokens that are added to those expected: a draft is not given up on the strength of a few rounds
_DRIFT = 0.02
_SLOWEST, _HASTE = 3.0, 0.3  # the most of a mean that one time counts; weight of one that took less than half of it
_DOUBT, _GUESS = 3.0, 0.02  # of the slope of the target's time: as if nodes had varied by so much, each at this share of it
_DOUBT_CHANGE = 0.1  # the same of what another size costs, which is taken to be nothing
_FRONT = 0.25  # of the time of a level, for one more node of it
_LONGEST_PAUSE = 256  # rounds without a draft before it is tried again
_TRIES = 4  # rounds in turn, of which the first does not count: the draft has to read what it has not seen
_SOON, _LATER = 4, 100  # rounds before some go without a draft to know what that takes: at first, and after that
_FIRST_LEVELS, _FIRST_NODES = 3, 8  # the most, as long as nothing is known
_ALONE = 0.9  # of the value below the root, where rounds tell what a draft brings, and not what is guessed beside it
_PLAIN, _COLD = 5, 2  # so many in turn, of which the first do not count: caches are cold after a draft, and the size is new


@final
class Pace:
    """Running means of a drafter's costs and gains; tokens and values are means over the rows of a batch.

    Attributes:
        speed: tokens per second and row of recent rounds, or of rounds without a draft where these are faster.
        level: seconds per drafted level, or per call where a call drafts several.
        node: seconds that one more node costs the target.
        change: seconds that a number of nodes costs which is not that of the round before: some engines prepare themselves
            for every size of a forward.
    """

    def __init__(self) -> None:
        self.speed = 0.0
        self.level = 0.0
        self.node = self.change = 0.0
        self._plain = 0.0  # seconds of a round without a draft; 0 while they are not known
        self._tokens = self._seconds = 0.0
        self._catch = [1.0]  # by depth: what a level's new nodes were worth, as a share of the nodes above them
        # Weighted sums for target seconds t against nodes n, and 1 in c where the round before had another number of them:
        self._fit = [0.0] * 8  # 1, n, n n, c, n c, t, n t, c t
        self._residues: dict[int, tuple[float, float]] = {}  # by number of nodes: weighted trees, and seconds off the plane
        self._last = 1  # nodes of the round before
        self._curve: list[float] = []  # running mean of what the best, second best, ... node was worth
        # Weighted sums over rounds without a draft, and with one: 1, seconds, tokens expected beyond the first, value not
        # guessed. What is expected varies less than what is seen, which over many rounds (here both) tells how right it is.
        self._alone, self._whole = [0.0] * 2, [0.0] * 4
        self._trust = [_TRUST] * 2
        self._above = 0.0  # value that this round's draft grows below; 0 where there is no draft
        self._with = self._without = 0  # rounds with a draft since one without was last timed; those without in turn
        self._pause = self._waited = self._tries = 0
        self._reads = False  # in this round the draft reads text that it had not seen

    def _slopes(self) -> tuple[float, float]:
        """What one more node and another number of them cost, of a plane through recent trees; a guess stands in for what
        did not vary."""
        one, n, nn, c, nc, t, nt, ct = self._fit
        if not one:
            return 0.0, 0.0
        guess, most = _GUESS * t / one, math.inf
        if self._plain:
            most = max(0.0, t - one * self._plain) / (n - one)  # were it by their nodes alone that trees cost more
            guess = most / 2
        doubt = _DOUBT * one
        spread, changes, both = nn - n * n / one + doubt, c - c * c / one + _DOUBT_CHANGE * one, nc - n * c / one
        by_node, by_change = nt - n * t / one + doubt * guess, ct - c * t / one
        over = spread * changes - both * both
        slope, change = (by_node * changes - by_change * both) / over, (by_change * spread - by_node * both) / over
        return max(0.0, min(slope, most)), max(0.0, change)

    def worth(self, depth: int, above: float) -> bool:
        """Whether a level (or call, where one drafts several) is expected to pay that grows below nodes of this value; 1 is
        the root's, less what is guessed."""
        known = bool(self.speed and self.level)
        if not depth:
            drafts = not known or self._begins(above)
            self._above = above * drafts
            return drafts
        if not known:
            return depth < _FIRST_LEVELS
        at = min(depth, len(self._catch) - 1)
        pays = self._catch[at] * above >= self.speed * self.level
        if not pays:
            self._catch[at] += _DRIFT * (1.0 - self._catch[at])  # so that it is tried again some time
        return pays

    def begin(self) -> bool:
        """A round begins; whether it should do without any draft, as nothing recent says what such a round takes."""
        self._above = 0.0
        return self._with >= (_LATER if self._plain else _SOON)

    def _begins(self, above: float) -> bool:
        """Whether anything is drafted."""
        pays = self._pays(above)
        if not pays and above < 1.0 and self._pays(1.0):
            return False  # only a guess stands in for the draft, so there is nothing to be tried
        return self._try(pays)

    def _pays(self, above: float) -> bool:
        """The first level alone, and the whole draft with all that it entails, a larger forward of the target above all."""
        if self._catch[0] * above < self.speed * self.level:
            return False
        rounds, seconds, expected, value = self._whole
        if not (self._plain and rounds and value):
            return True
        guessed = 1.0 - above  # a token at least, which pays for the larger forward too
        tokens = expected * self._trust[1] / self._trust[0]
        return (tokens + _HOPE) / value * above + guessed >= self.speed * (seconds / rounds - self._plain)

    def _try(self, pays: bool) -> bool:
        """A draft that does not pay is tried again after pauses that double: the text may have become easier."""
        if pays:
            self._pause = self._waited = self._tries = 0
        elif self._tries:
            self._tries -= 1
        elif self._waited < self._pause:
            self._waited += 1
            return False
        else:
            self._pause, self._waited, self._tries = min(_LONGEST_PAUSE, 2 * self._pause + 1), 0, _TRIES - 1
        return True

    def least_front(self, depth: int) -> float:
        """The value below which one more node of a level costs the draft more than what grows below it brings."""
        return _FRONT * self.speed * self.level / max(self._catch[min(depth, len(self._catch) - 1)], _FRONT)

    def least_value(self) -> float:
        """The value below which a node costs the target more than it brings."""
        return self.speed * self.node

    def size(self, curve: Sequence[float]) -> int:
        """How many nodes are shown to the target, given what the best of them is expected to bring, the second best, and so
        on. Those worth their cost; but as many as usual, if this is not worth the cost of another size, there and back."""
        if not self._fit[0]:
            return min(len(curve), _FIRST_NODES)  # few before it is known what they cost
        price = self.least_value()
        costs = [price * nodes + self.speed * self._aside(nodes + 1) for nodes in range(1, len(curve) + 1)]
        self._curve = [
            _FORGET * old + (1 - _FORGET) * new for old, new in zip_longest(self._curve or curve, curve, fillvalue=0.0)
        ]
        gains, usually = _net(curve, costs), _net(self._curve, costs)
        best, usual = gains.index(max(gains)), usually.index(max(usually))
        size = usual if usual and gains[best] - gains[usual] <= 2.0 * self.speed * self.change else best
        return size if gains[best] >= self.least_tree() else 0

    def _aside(self, nodes: int) -> float:
        """Seconds that trees of just so many nodes have taken more than the plane says: kernels work in blocks of rows."""
        of, seconds = self._residues.get(nodes, (0.0, 0.0))
        return seconds / (of + _DOUBT)

    def least_tree(self) -> float:
        """Tokens that a tree must bring beyond the cost of its nodes: a forward of several may take longer than one of the
        root alone, whatever their number."""
        one, n, t = self._fit[0], self._fit[1], self._fit[5]
        if not (one and self._plain):
            return 0.0
        return self.speed * max(0.0, t / one - self.node * (n / one - 1.0) - self._plain)

    def shows(self, chances: Sequence[Sequence[float]]) -> bool:
        """Whether chains are worth a larger forward of the target: of each, the chances of its nodes below one another."""
        least, gain = self.least_value(), 0.0
        for chain in chances:
            for value in takewhile(lambda value: value > least, accumulate(chain, mul)):
                gain += value - least
        return gain > 0.0 and gain / len(chances) >= self.least_tree()

    def grew(self, depth: int, above: float, brought: float, seconds: float | None) -> None:
        """A level was drafted: the value of the nodes above it, what the new ones bring beyond their cost to the target, and
        its time; None where the draft also had to read text that it had not seen."""
        while len(self._catch) <= depth:
            self._catch.append(self._catch[-1])
        if above > 0:
            self._catch[depth] += (1 - _FORGET) * (brought / above - self._catch[depth])
        if seconds is None:
            self._reads = True
        else:
            self.level = self._towards(self.level, seconds)

    @staticmethod
    def _towards(mean: float, seconds: float) -> float:
        """A machine is slower than usual now and then, never faster: what took long counts less, and what took very little
        more, so that one slow level does not end drafting for long."""
        weight = _HASTE if seconds < mean / 2 else 1 - _FORGET
        return mean + (min(seconds, _SLOWEST * mean) - mean) * weight if mean else seconds

    def finished(self, nodes: int, expected: float, tokens: float, drafting: float, seconds: float) -> None:
        """A round is over: nodes shown to the target, the root among them, what those below it were expected to bring, new
        tokens, the time of its levels and of all."""
        self._tokens = _FORGET_COSTS * self._tokens + tokens
        self._seconds = _FORGET_COSTS * self._seconds + seconds
        above, reads, self._above, self._reads = self._above, self._reads, 0.0, False
        known = nodes == 1 or nodes in self._residues  # kernels may be made for a size when it comes first
        if above:
            self._without = 0
        if above > _ALONE and not reads and known:
            self._whole = _joined(self._whole, seconds, expected, above)
            seen = expected, tokens - 1.0
            self._trust = [_FORGET_TRUST * old + new for old, new in zip(self._trust, seen, strict=True)]
        elif nodes == 1 and not above:
            self._without += 1
            self._trust = [_FADE * old + (1.0 - _FADE) * _TRUST for old in self._trust]  # the draft may have changed
            if self._without > _COLD:
                self._alone = _joined(self._alone, seconds)
                self._plain = self._alone[1] / self._alone[0]
                self.node, self.change = self._slopes()
        changed, self._last = float(nodes != self._last), nodes
        self.speed = self._tokens / self._seconds if self._seconds else 0.0
        if self._plain:
            self.speed = max(self.speed, 1.0 / self._plain)  # what can be had without a draft any time
        if nodes == 1:
            self._with *= self._without < _PLAIN
            return
        self._with, self._without = self._with + 1, 0
        if not known:
            self._residues[nodes] = 0.0, 0.0
            return
        target = max(0.0, seconds - drafting)
        if self._fit[0]:
            target = min(target, _SLOWEST * self._fit[5] / self._fit[0])
            self._learn_residue(nodes, changed, target)
        new = (1.0, nodes, nodes * nodes, changed, nodes * changed, target, nodes * target, changed * target)
        self._fit = [_FORGET_COSTS * old + fresh for old, fresh in zip(self._fit, new, strict=True)]
        self.node, self.change = self._slopes()

    def _learn_residue(self, nodes: int, changed: float, target: float) -> None:
        one, n, _, c, _, t, _, _ = self._fit
        off = target - t / one - self.node * (nodes - n / one) - self.change * (changed - c / one)
        of, seconds = self._residues[nodes]
        self._residues[nodes] = _FORGET_COSTS * of + 1.0, _FORGET_COSTS * seconds + off


def _net(values: Iterable[float], costs: Iterable[float]) -> list[float]:
    """What no node, the best, the best two, ... bring beyond their cost."""
    return [0.0, *(whole - cost for whole, cost in zip(accumulate(values), costs, strict=False))]


def _joined(sums: list[float], seconds: float, *others: float) -> list[float]:
    """Weighted sums of 1, seconds and others with one more round; of a time far above the mean only a part counts."""
    usual = min(seconds, _SLOWEST * sums[1] / sums[0]) if sums[0] else seconds
    return [_FORGET_WHOLE * old + fresh for old, fresh in zip(sums, (1.0, usual, *others), strict=True)]
