"""A tape on which every random choice of the engine is written: each outcome is tried once, with its probability.

Each row of a batch plays one tape. Where its script ends, a row takes the first outcome and hands in the others as new
scripts; together the tapes enumerate the exact joint law of whole texts, through the real engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from draftwood.noise import Beam

NEVER = 1e-12


@dataclass
class Tape:
    script: list[int]
    weight: float = 1.0
    played: list[int] = field(default_factory=list)
    others: list[list[int]] = field(default_factory=list)
    memory: dict = field(default_factory=dict)
    end: int = 1 << 30  # text positions from here on are never reached

    def fork(self, weights: Sequence[float]) -> int:
        """An outcome with probability proportional to its weight."""
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


class TapeSource:
    """A noise source for the decode loop: one tape per row."""

    def __init__(self, tapes: Sequence[Tape], shared_noise: torch.Tensor | None = None) -> None:
        self.tapes = list(tapes)
        self.shared_noise = shared_noise  # [outcome, vocab], equally likely

    def at(self, positions):
        return TapeChoices(self.tapes, list(positions), self.shared_noise)

    def select(self, rows):
        return TapeSource([self.tapes[r] for r in rows], self.shared_noise)


class TapeChoices:
    def __init__(self, tapes, positions, shared_noise) -> None:
        self.tapes, self.positions, self.shared_noise = tapes, positions, shared_noise

    def _each(self, log_q, count, draw: Callable):
        out = [
            [draw(tape, law, count) for law in laws]
            for tape, laws in zip(self.tapes, log_q.exp().nan_to_num(0.0).tolist(), strict=True)
        ]
        return torch.tensor(out)

    def ordered(self, log_q, count, first, of):
        return self._each(log_q, min(count, log_q.shape[-1]), without_replacement)

    def independent(self, log_q, count, first, of):
        return self._each(log_q, count, lambda tape, law, n: [tape.fork(law) if max(law) > 0 else -1 for _ in range(n)])

    def beam(self, log_q, phi, times, width, first, of):
        rows = [
            beam_of(tape, p, laws, width)
            for tape, p, laws in zip(self.tapes, phi.exp().tolist(), log_q.exp().tolist(), strict=True)
        ]
        size = min(width, log_q.shape[1] * log_q.shape[2])
        parents, tokens, weights = ([[r[i] for r in row] + [0] * (size - len(row)) for row in rows] for i in range(3))
        new_phi = torch.tensor(weights, dtype=log_q.dtype).log()
        order = torch.arange(size, dtype=torch.float64).expand_as(new_phi)
        times = torch.where(new_phi > -torch.inf, order, torch.inf)
        return Beam(torch.tensor(parents), torch.tensor(tokens), new_phi, times)

    def accept(self, target, draft, node):
        out = []
        for tape, p, q, asking in zip(self.tapes, target, draft, node, strict=True):
            if not asking:
                out.append(False)
                continue
            yes = min(1.0, p / q) if q > 0 else float(p > 0)
            out.append(tape.fork([yes, 1.0 - yes]) == 0)
        return out

    def token(self, law):
        return torch.tensor([tape.fork(row) for tape, row in zip(self.tapes, law.tolist(), strict=True)])

    def path(self, weights):
        return self.token(weights)

    def shared(self, offset, count, vocab):
        if self.shared_noise is None:
            return None
        out = []
        for tape, position in zip(self.tapes, self.positions, strict=True):
            rows = []
            for t in range(position + 1 + offset, position + 1 + offset + count):
                if t >= tape.end:  # deeper than this row's text can get
                    rows.append(self.shared_noise[0])
                    continue
                if t not in tape.memory:  # the noise of a text position is one and the same in every round
                    tape.memory[t] = tape.fork([1.0] * len(self.shared_noise))
                rows.append(self.shared_noise[tape.memory[t]])
            out.append(torch.stack(rows))
        return torch.stack(out)


def without_replacement(tape: Tape, law: Sequence[float], count: int) -> list[int]:
    left, out = list(law), []
    for _ in range(count):
        if max(left) <= 0:
            out.append(-1)
            continue
        out.append(tape.fork(left))
        left[out[-1]] = 0.0
    return out


def beam_of(tape: Tape, prefixes: Sequence[float], laws: Sequence[Sequence[float]], width: int):
    """One level of stochastic beam search as an exponential race: leaves of prefixes that have arrived run on, the next
    prefix arrives at the rate of all mass not yet arrived, and brings its own best leaf (Kool et al. 2019, by memorylessness
    of the race). Prefixes come in beam order. Returns (parent, token, path probability), best first."""
    alive = [i for i, w in enumerate(prefixes) if w > 0 and max(laws[i]) > 0]
    left = [[w * q for q in law] for w, law in zip(prefixes, laws, strict=True)]
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


def enumerate_law(run: Callable[[list[Tape]], list[tuple[int, ...]]], batch: int = 512, most: int = 400_000):
    """The exact law of ``run``'s results (one per tape), and the number of branches."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    waiting, branches = [[]], 0
    while waiting:
        tapes = [Tape(script) for script in waiting[-batch:]]
        del waiting[-batch:]
        for tape, result in zip(tapes, run(tapes), strict=True):
            law[result] += tape.weight
            waiting += tape.others
        branches += len(tapes)
        assert branches < most, "too many branches: make the case smaller"
    assert abs(sum(law.values()) - 1) < 1e-9, "the branches do not add up to one"
    return dict(law), branches


def total_variation(a: dict, b: dict) -> float:
    return sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys()) / 2
