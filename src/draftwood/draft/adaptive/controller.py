"""Decides how far drafting pays, from the measured costs and gains of rounds.

Tokens per second are a ratio of two sums. By Dinkelbach (1967), a step raises such a ratio exactly when the tokens it is
expected to bring exceed the current speed times the seconds it takes. This rule answers three questions: whether to draft,
whether to draft another level, and how many nodes the target scores. Only the speed depends on the answers, never the text.
``docs/methods.md`` derives the rule and its terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import NamedTuple, final

from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.budget import Budget
from draftwood.draft.adaptive.cost import CostModel, Costs
from draftwood.draft.adaptive.estimates import GainModel, Ratio, mean_row
from draftwood.draft.adaptive.learnt import NOTHING, Learnt
from draftwood.draft.adaptive.probe import Probe

_DRAFTED = 2.0  # plain rounds: about as long as a round with a draft, at most


class _Probes(NamedTuple):
    """The probes of the three choices: no tree, a tree of the draft, and a guess alone."""

    plain: Probe
    draft: Probe
    guess: Probe


@dataclass
class _RoundState:
    """Decisions of one round: a guess, and a draft below nodes of this probability."""

    guess: bool = False
    above: float = 0.0  # 0 without a draft
    net: float = 0.0  # tokens of the best tree so far, less those that its seconds beyond the smallest tree would bring
    reads: bool = False  # the draft model also read text that it had not seen


@final
class Controller(Budget):
    """A budget that grows what pays.

    Args:
        learnt: the knowledge of another controller, to start from.
        rows: texts of a round.

    Attributes:
        costs: the model of seconds.
        gains: the model of tokens.
        speed: tokens per second and row: of recent rounds, or of plain decoding if that is faster.
    """

    def __init__(self, learnt: Learnt | None = None, *, rows: int = 1) -> None:
        known = learnt or NOTHING
        costs, weight = known.costs, constants.PRIOR_WEIGHT
        if not costs.base:
            costs, weight = Costs().of_rows(rows), constants.FIRST_WEIGHT
        self.costs = CostModel(costs, weight, timed=known.timed)
        self.gains = GainModel(known.gains, known.reach)
        self.speed, self._beyond = 0.0, self.costs.beyond(constants.NODES)
        self._recent = Ratio(constants.FORGET)
        self._worth = Ratio(constants.FORGET_SLOWLY, known.worth, constants.WORTH_PRIOR / rows)  # each row is evidence
        self._probes = _Probes(*map(Probe, known.waits))
        self._round = _RoundState()
        self._drafted = 0  # rounds with a tree since plain decoding was timed
        self._plain = 0  # successive rounds without a tree
        self._probes.plain.left = constants.PROBE_SKIP + constants.PROBE_ROUNDS

    @property
    def learnt(self) -> Learnt:
        """The current knowledge."""
        return Learnt(
            costs=self.costs.value(),
            timed=self.costs.timed,
            gains=self.gains.gains(),
            reach=self.gains.reach(),
            worth=self._worth.value,
            waits=tuple(max(0.0, probe.wait) for probe in self._probes),
        )

    def begin_round(self) -> bool:
        """Whether the round has no tree, to time plain decoding."""
        self.gains.begin_round()
        base, probe = self.costs.base, self._probes.plain
        plain = not base or probe.left > 0 or (self._drafted > 0 and not self._probes.draft.left and probe.due(base))
        if plain:
            probe.start()
        self._round, self._beyond = _RoundState(), self.costs.beyond(constants.NODES)
        self._probes.draft.expected = None
        return plain

    def shows_guess(self, chains: Sequence[Sequence[float]]) -> bool:
        values, probe = mean_row([[*accumulate(chain, mul)] for chain in chains]), self._probes.guess
        net = self._best(values, self._beyond[1])[1]
        if net <= 0.0:
            return False
        if self._best(values)[1] > self.speed * self.costs.back * (self._plain > 0):  # a run of trees returns once
            probe.cancel()
        elif probe.due(self.costs.base):
            probe.start()
        else:
            return False
        self._round.guess, self._round.net = True, net
        return True

    def drafts(self, above: float) -> bool:
        drafts = self._drafts(above)
        self._round.above = above * drafts
        return drafts

    def _drafts(self, above: float) -> bool:
        """Whether to draft. A draft that was never timed, or whose rounds have brought less than plain ones, is only
        tried. One that does not pay is tried again after pauses: the text may have become easier."""
        guess, base = self._round.guess, self.costs.base
        if self.costs.timed and self._draft_pays(above, guess):
            if self._worth.value >= 1.0:
                self._probes.draft.cancel()
                return True
            rounds = _DRAFTED * constants.PROBE_ROUNDS
            self._probes.draft.expected = base * min(1.0, rounds * (1.0 - self._worth.value))
        if guess and (above < self.speed * self.costs.opening or self._draft_pays(1.0, guess=False)):
            return False  # with this guess no draft can pay, or without it the draft pays: a probe would show nothing
        if not self._probes.draft.due(base):
            return False
        self._probes.draft.start()
        return True

    def _draft_pays(self, above: float, guess: bool) -> bool:
        """Whether the best number of levels pays, and the target's larger forward unless a guess needs it anyway."""
        most = self.gains.most(above, self.speed * self.costs.opening, self.speed * self.costs.level(1))
        return most >= (0.0 if guess else self.speed * self._beyond[1])

    def gain(self, depth: int) -> float:
        return self.gains.at(depth)

    def price(self, nodes: int) -> float:
        return self.speed * self.costs.level(nodes)

    def refuse_level(self, depth: int, above: float) -> None:
        self.gains.add_reach(depth, above)
        self.gains.add_refusal(depth)

    def end_level(self, depth: int, above: float, values: Sequence[float], nodes: int, seconds: float | None) -> None:
        if not depth and self._plain:  # knowledge fades with rounds without a draft
            keep = constants.FORGET**self._plain
            self.costs.age(keep)
            self.gains.age(keep)
            if self._worth.value < 1.0:
                self._worth.age(keep)
        if depth:
            self.gains.add_reach(depth, above)
        before, self._round.net = self._round.net, self._best(values, self._beyond[1])[1]
        if above > 0.0:
            self.gains.add_level(depth, above, self._round.net - before)
        if seconds is None:
            self._round.reads = True
        else:
            self.costs.add_level(depth, nodes, seconds)

    def tree_size(self, values: Sequence[float]) -> int:
        """The number of nodes that bring more than they cost."""
        probe = self._probes.draft
        if probe.left and probe.size:
            return min(probe.size, len(values))
        shown = probe.left or self._probes.guess.left  # a probe must show a tree
        size = self._best(values, self._beyond[1] if shown else 0.0)[0]
        if probe.left:
            probe.size = size
        return size

    def _best(self, values: Sequence[float], free: float = 0.0) -> tuple[int, float]:
        """The number of nodes that bring most beyond their cost, and how much that is, in tokens.

        Args:
            values: path probabilities, the largest first.
            free: seconds that do not count.
        """
        nets, total = [0.0], 0.0
        for value, seconds in zip(values, self._beyond[1:], strict=False):
            total += value
            nets.append(total - self.speed * max(0.0, seconds - free))
        best = max(nets)
        return nets.index(best), best

    def end_round(self, nodes: int, tokens: float, drafting: float, seconds: float) -> None:
        state, base = self._round, self.costs.base
        lost = max(0.0, seconds - tokens / self.speed) if self.speed else 0.0
        for probe in self._probes:
            probe.end_round(seconds, lost, base or seconds)
        seen_size = self.costs.add_tree(nodes - 1, max(0.0, seconds - drafting), drafted=state.above > 0.0)
        if state.above and seen_size and base and not (state.reads or state.guess):
            self._worth.add(tokens, seconds / base)
        drafted = state.above > 0.0 or nodes > 1
        self._drafted += drafted
        self._plain = 0 if drafted else self._plain + 1
        if self._plain > constants.PROBE_SKIP:
            self.costs.add_plain(seconds)
            if not self._probes.plain.left:
                self._drafted = 0
        self._recent.add(tokens, seconds)
        base = self.costs.base
        self.speed = max(self._recent.value, 1.0 / base if base else 0.0)

    def rest(self, looking: float) -> int:
        base = self.costs.base
        if not base or any(probe.left for probe in self._probes):
            return 0
        return min(
            int(looking / (constants.LOOK_SHARE * base)), int(constants.REST_SHARE * self._plain), constants.REST_ROUNDS
        )
