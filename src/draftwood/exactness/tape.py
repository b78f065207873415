"""Exhaustive enumeration of the engine's random choices: each outcome is tried once, with its probability.

Each row of a batch plays one tape, a record of random choices. Where its script ends, a row takes the first outcome and adds
the others as new scripts. Together the tapes enumerate the exact joint distribution of whole texts, through the real engine.
A row's choices must not depend on its neighbours. Otherwise scripts are read out of step, and the probabilities of all
branches do not add up to one, which is checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.core.rng import Beam

NEVER: Final = 1e-12  # outcomes below this probability are not tried
MOST: Final = 400_000  # branches
Texts: TypeAlias = tuple[int, ...]
JointDistribution: TypeAlias = Mapping[Texts, float]
"""Texts, each with its probability."""


@final
@dataclass
class Tape:
    """One branch.

    Attributes:
        script: outcomes to be taken, in the order of the choices.
        weight: the probability of all outcomes taken so far.
        played: the outcomes taken so far.
        others: scripts of the branches that were not taken.
        memory: the outcome of the shared noise at each text position.
        end: the text position after the last one that is written; required where there is shared noise.
    """

    script: list[int]
    weight: float = 1.0
    played: list[int] = field(default_factory=list)
    others: list[list[int]] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)
    end: int | None = None

    def fork(self, weights: Sequence[float]) -> int:
        """The index of an outcome, each with probability proportional to its weight."""
        total = sum(weights)
        possible = [i for i, w in enumerate(weights) if w > NEVER * total]
        at = len(self.played)
        if at < len(self.script):
            choice = self.script[at]
        else:
            choice = possible[0]
            self.others += [[*self.played, i] for i in possible[1:]]
        self.played.append(choice)
        self.weight *= weights[choice] / total
        return choice

    def shared(self, position: int, first: int, outcomes: int) -> int:
        """The outcome of the shared noise at a text position, the same in every round; 0 beyond the text's end.

        All positions from ``first`` on are decided at once, since the depth of a round may depend on its neighbours.
        """
        if self.end is None:
            raise ValueError("a tape with shared noise has no end: set Tape.end to the position where its text ends")
        if not self.memory:
            self.memory = {t: self.fork([1.0] * outcomes) for t in range(first, self.end)}
        return self.memory.get(position, 0)


@final
class TapeSource:
    """An :class:`draftwood.core.rng.Rng` that enumerates: one tape per row.

    Args:
        tapes: one per row.
        shared_noise: equally likely noises of a text position; None for temperature 0.
    """

    def __init__(self, tapes: Sequence[Tape], shared_noise: Float[Tensor, "outcome vocab"] | None = None) -> None:
        self.tapes = list(tapes)
        self.shared_noise = shared_noise

    def at(self, positions: Sequence[int]) -> TapeRoundRng:
        return TapeRoundRng(self.tapes, list(positions), self.shared_noise)

    def select(self, rows: Sequence[int]) -> TapeSource:
        return TapeSource([self.tapes[r] for r in rows], self.shared_noise)


@final
class TapeRoundRng:
    """A :class:`draftwood.core.rng.RoundRng` whose choices are outcomes of tapes."""

    def __init__(
        self, tapes: Sequence[Tape], positions: Sequence[int], shared_noise: Float[Tensor, "outcome vocab"] | None
    ) -> None:
        self.tapes, self.positions, self.shared_noise = tapes, positions, shared_noise

    def _each(self, log_q: Tensor, count: int, draw: Callable[[Tape, list[float], int], list[int]]) -> Tensor:
        rows = log_q.exp().nan_to_num(0.0).tolist()
        out = [[draw(tape, probs, count) for probs in row] for tape, row in zip(self.tapes, rows, strict=True)]
        return torch.tensor(out, device=log_q.device)

    def ordered(self, log_q: Tensor, count: int, first: int) -> Tensor:
        return self._each(log_q, min(count, log_q.shape[-1]), without_replacement)

    def independent(self, log_q: Tensor, count: int, first: int) -> Tensor:
        return self._each(
            log_q, count, lambda tape, probs, n: [tape.fork(probs) if max(probs) > 0 else -1 for _ in range(n)]
        )

    def beam(self, log_q: Tensor, phi: Tensor, times: Tensor, width: int, first: int) -> Beam:
        rows = [
            beam_of(tape, prefixes, probs, width)
            for tape, prefixes, probs in zip(self.tapes, phi.exp().tolist(), log_q.exp().tolist(), strict=True)
        ]
        size, device = min(width, log_q.shape[1] * log_q.shape[2]), log_q.device
        empty = (0, 0, 0.0)
        parents, tokens, weights = ([[e[i] for e in (row + [empty] * size)[:size]] for row in rows] for i in range(3))
        new_phi = torch.tensor(weights, dtype=log_q.dtype, device=device).log()
        order = torch.arange(size, dtype=torch.float64, device=device).expand_as(new_phi)
        arrived = torch.where(new_phi > -torch.inf, order, torch.inf)
        return Beam(torch.tensor(parents, device=device), torch.tensor(tokens, device=device), new_phi, arrived)

    def accept(self, target: Sequence[float], draft: Sequence[float], node: Sequence[int]) -> list[bool]:
        out = []
        for tape, p, q, tried in zip(self.tapes, target, draft, node, strict=True):
            accept = float(p > 0) if q <= 0 else 1.0 if p >= q else p / q
            out.append(bool(tried) and tape.fork([accept, 1.0 - accept]) == 0)
        return out

    def token(self, probs: Float[Tensor, "row vocab"]) -> Int[Tensor, "row"]:
        taken = [tape.fork(row) for tape, row in zip(self.tapes, probs.tolist(), strict=True)]
        return torch.tensor(taken, device=probs.device)

    def path(self, weights: Float[Tensor, "row end"]) -> Int[Tensor, "row"]:
        return self.token(weights)

    def shared(
        self, offset: int, count: int, vocab: int, tokens: Int[Tensor, "n"] | None = None
    ) -> Float[Tensor, "row count _"] | None:
        if self.shared_noise is None:
            return None
        noises = self.shared_noise
        taken = [
            [tape.shared(root + 1 + offset + i, root + 1, len(noises)) for i in range(count)]
            for tape, root in zip(self.tapes, self.positions, strict=True)
        ]
        found = noises[torch.tensor(taken, device=noises.device)]
        return found if tokens is None else found[..., tokens]


def without_replacement(tape: Tape, probs: Sequence[float], count: int) -> list[int]:
    """The indices of an ordered sample; -1 where the support is exhausted."""
    remaining, out = list(probs), list[int]()
    for _ in range(count):
        if max(remaining) <= 0:
            out.append(-1)
            continue
        out.append(tape.fork(remaining))
        remaining[out[-1]] = 0.0
    return out


def beam_of(
    tape: Tape, prefixes: Sequence[float], probs: Sequence[Sequence[float]], width: int
) -> list[tuple[int, int, float]]:
    """One level of stochastic beam search as an exponential race (Kool et al. 2019, by memorylessness of the race).

    Leaves of prefixes that have arrived keep running. The next prefix arrives at the rate of all mass that has not arrived,
    and brings its own best leaf. Prefixes come in beam order.

    Returns:
        (parent, token, path probability), best first.
    """
    alive = [i for i, w in enumerate(prefixes) if w > 0 and max(probs[i]) > 0]
    left = [[w * q for q in row] for w, row in zip(prefixes, probs, strict=True)]
    arrived: list[int] = []
    out: list[tuple[int, int, float]] = []
    while len(out) < width:
        runners = [(i, x) for i in arrived for x, w in enumerate(left[i]) if w > 0]
        waiting = alive[len(arrived) : len(arrived) + 1]
        rate = [max(1.0 - sum(prefixes[i] for i in arrived), prefixes[waiting[0]])] if waiting else []
        rates = [left[i][x] for i, x in runners] + rate
        if not rates:
            break
        event = tape.fork(rates)
        if event < len(runners):
            i, x = runners[event]
        else:
            i = waiting[0]
            arrived.append(i)
            x = tape.fork(left[i])
        out.append((i, x, left[i][x]))
        left[i][x] = 0.0
    return out


def enumerate_distribution(
    run: Callable[[list[Tape]], Sequence[Texts]], batch: int = 512, most: int = MOST, rounding: float = 1e-9
) -> tuple[JointDistribution, int]:
    """The exact distribution of ``run``'s results (one per tape), and the number of branches.

    Args:
        run: plays some tapes as the rows of one batch.
        batch: the number of tapes played together.
        most: the largest number of branches.
        rounding: the largest error of the sum of all branches; forwards of other batches round differently.

    Raises:
        ConfigError: more than ``most`` branches.
        RuntimeError: the branches do not add up to one.
    """
    distribution: dict[Texts, float] = defaultdict(float)
    waiting: list[list[int]] = [[]]
    branches = 0
    while waiting:
        tapes = [Tape(script) for script in waiting[-batch:]]
        del waiting[-batch:]
        branches += len(tapes)
        if branches > most:
            raise ConfigError(f"there are more than {most:,} branches of random choices: make the case smaller")
        for tape, result in zip(tapes, run(tapes), strict=True):
            distribution[result] += tape.weight
            waiting += tape.others
    if not abs(sum(distribution.values()) - 1) <= rounding:
        raise RuntimeError(
            f"the branches add up to {sum(distribution.values())}, not to one: a row's choices depend on its neighbours"
        )
    return dict(distribution), branches


def total_variation(a: JointDistribution, b: JointDistribution) -> float:
    """The total variation distance: half the sum of the absolute differences."""
    return sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys()) / 2
