"""Counter-based randomness: every random choice of a round is a pure function of (seed, stream, position, slot, token).

No number depends on earlier calls, so a request gets the same bits for any batch, device and order of calls. Each purpose
has its own stream: noise that is used both to propose and to correct would bias the output. Only the shared stream is used
twice, on purpose, by a shared-noise drafter and the coupled verifier.

Sources: Gumbel-max and Gumbel-top-k (Kool et al. 2019, "Stochastic Beams and Where to Find Them").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.checks import integer
from draftwood.core.rng import Beam
from draftwood.core.settings import MAX_SEED
from draftwood.sampling.counters import STEP, Counters, exponential, mix, token_bases, uniform

_AHEAD: Final = 8  # positions whose keys are made together


class Stream(IntEnum):
    """The purpose of a random number."""

    DRAFT = 0
    ACCEPT = 1
    TOKEN = 2
    SHARED = 3
    PATH = 4


@final
class CounterRng:
    """The noise of a batch of requests, one seed per row.

    Args:
        seeds: one integer in ``[0, 2**63)`` per row.
        device: where the noise is made.
        greedy: zero noise, so that every choice is the best candidate (temperature 0), for all rows or by row.

    Raises:
        ConfigError: a seed out of range.
    """

    def __init__(
        self, seeds: Sequence[int], device: torch.device | str = "cpu", *, greedy: bool | Sequence[bool] = False
    ) -> None:
        for seed in seeds:
            integer("seed", seed, 0, MAX_SEED)
        self.seeds = list(seeds)
        self.device = torch.device(device)
        self.greedy = [greedy] * len(self.seeds) if isinstance(greedy, bool) else list(greedy)
        spread: Counters = np.asarray(self.seeds, dtype=np.uint64)[:, None] * STEP
        purposes: Counters = np.arange(len(Stream), dtype=np.uint64)
        self.streams = mix(spread + purposes)  # [row, stream]

    def select(self, rows: Sequence[int]) -> CounterRng:
        """The noise of some of the rows."""
        return CounterRng([self.seeds[r] for r in rows], self.device, greedy=[self.greedy[r] for r in rows])

    def at(self, positions: Sequence[int]) -> CounterRoundRng:
        """The choices of the round whose roots have these text positions (0-based), one per row."""
        return CounterRoundRng(self, positions)


@final
class CounterRoundRng:
    """:class:`RoundRng` by Gumbel noise.

    Keys are (seed, stream, root position, slot), in the shared stream (seed, position). The root position grows in every
    round, so no number is used in two rounds. Reuse would keep each round's marginal distribution right, but make the joint
    distribution of the text wrong.
    """

    def __init__(self, rng: CounterRng, positions: Sequence[int]) -> None:
        self._greedy = all(rng.greedy)
        self._certain = [row for row, one in enumerate(rng.greedy) if one and not self._greedy]  # rows without noise
        self._device = rng.device
        self._rng = rng
        self._positions, self._starts = positions, [position + 1 for position in positions]
        self._shared: Int[np.ndarray, "row position"] | None = None

    @cached_property
    def _roots(self) -> Counters:
        """Mixed keys ``[row, stream]`` of this round."""
        spread: Counters = np.asarray(self._positions, dtype=np.uint64)[:, None] * STEP
        return mix(self._rng.streams + spread)

    def _keys(self, stream: Stream, first: int, count: int) -> Int[Tensor, "row slot 1"]:
        slots: Counters = np.arange(first + 1, first + count + 1, dtype=np.uint64) * STEP
        roots: Counters = self._roots[:, stream, None]
        return torch.from_numpy(mix(roots + slots).view(np.int64)).to(self._device).unsqueeze(-1)

    def _arrivals(self, log_q: Float[Tensor, "row node vocab"], first: int) -> Float[Tensor, "row node vocab"]:
        """Arrival times: exponential with rate ``q``, infinite where ``q = 0``; ``1 / q`` in greedy rows."""
        if self._greedy:
            return torch.exp(-log_q)
        keys, bases = self._keys(Stream.DRAFT, first, log_q.shape[1]), token_bases(log_q.shape[-1], self._device)
        times = exponential(keys, bases, log_q.dtype)
        if self._certain:
            times[self._certain] = 1.0
        return times / log_q.exp()

    def ordered(self, log_q: Tensor, count: int, first: int) -> Tensor:
        best = self._arrivals(log_q, first).topk(min(count, log_q.shape[-1]), dim=-1, largest=False)
        return torch.where(best.values < torch.inf, best.indices, -1)

    def independent(self, log_q: Tensor, count: int, first: int) -> Tensor:
        if self._greedy:
            return self.ordered(log_q, 1, first)
        time, token = self._arrivals(log_q.repeat_interleave(count, dim=1), first).min(dim=-1)
        drawn = torch.where(time < torch.inf, token, -1).view(len(log_q), -1, count)
        if self._certain:
            drawn[self._certain, :, 1:] = -1  # the best candidate once
        return drawn

    def beam(self, log_q: Tensor, phi: Tensor, times: Tensor, width: int, first: int) -> Beam:
        reach = min(width, log_q.shape[-1])
        # The parent arrived with its first child. The other children follow as in a race from that child on: by
        # memorylessness this is Kool et al.'s conditioning, gtil = -log(exp(-T) - exp(-Z) + exp(-ghat)). Only the first
        # ``width`` children of a node can enter the beam. Impossible children have infinite or NaN times, both sorted last.
        best = self._arrivals(log_q, first).topk(reach, dim=-1, largest=False)
        logs = log_q.gather(2, best.indices)
        children = zip(best.indices.tolist(), best.values.tolist(), logs.tolist(), strict=True)  # host sync
        rows = zip(children, phi.tolist(), times.tolist(), strict=True)
        beams = [_race(width, *row, above, starts) for row, above, starts in rows]
        parents, tokens, sums, arrived = ([[entry[i] for entry in beam] for beam in beams] for i in range(4))
        return Beam(
            torch.tensor(parents, device=self._device),
            torch.tensor(tokens, device=self._device),
            torch.tensor(sums, device=self._device, dtype=log_q.dtype),
            torch.tensor(arrived, device=self._device, dtype=torch.float64),
        )

    def accept(self, target: Sequence[float], draft: Sequence[float], node: Sequence[int]) -> list[bool]:
        rows = zip(target, draft, uniform(self._roots[:, Stream.ACCEPT], node), strict=True)
        return [p > 0 and u * q < p for p, q, u in rows]

    def uniform(self, stream: Stream, slot: int = 0) -> list[float]:
        """Per row, the number that :meth:`accept` compares for a node, or that :meth:`token` and :meth:`path` invert."""
        return uniform(self._roots[:, stream], [slot] * len(self._roots))

    def token(self, probs: Tensor) -> Tensor:
        return probs.argmax(dim=-1) if self._greedy else self._one_of(probs, Stream.TOKEN)

    def path(self, weights: Tensor) -> Tensor:
        if self._greedy or weights.shape[-1] == 1:
            return weights.argmax(dim=-1)
        return self._one_of(weights, Stream.PATH)

    def _one_of(self, weights: Tensor, stream: Stream) -> Tensor:
        """An index by inversion of the cumulative sum.

        The sum grows at positive weights only, and u < 1 keeps the point below its end.
        """
        cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
        u = torch.tensor(self.uniform(stream), dtype=torch.float64).unsqueeze(1)
        return torch.searchsorted(cumulative, cumulative[:, -1:] * u.to(self._device), right=True).squeeze(1)

    def shared_keys(self, offset: int, count: int) -> Int[np.ndarray, "row count"] | None:
        """The keys of :meth:`shared`, on the host: 0 in greedy rows, None if all are."""
        if self._greedy:
            return None
        if self._shared is None or self._shared.shape[1] < offset + count:
            steps: Counters = np.arange(max(offset + count, _AHEAD), dtype=np.uint64)
            positions: Counters = (np.asarray(self._starts, dtype=np.uint64)[:, None] + steps) * STEP
            keys = mix(self._rng.streams[:, Stream.SHARED, None] + positions)
            keys[self._rng.greedy] = 0
            self._shared = keys.view(np.int64)
        return self._shared[:, offset : offset + count]

    def shared(self, offset: int, count: int, vocab: int, tokens: Tensor | None = None) -> Tensor | None:
        """As :meth:`draftwood.core.rng.RoundRng.shared`.

        Noise belongs to the position, not to the round. Noise made for ``tokens`` only may differ in the rounding of its
        logarithms.
        """
        if (keys := self.shared_keys(offset, count)) is None:
            return None
        bases = token_bases(vocab, self._device)
        noisy = [row for row, greedy in enumerate(self._rng.greedy) if not greedy]
        given = torch.from_numpy(keys[noisy]).to(self._device).unsqueeze(-1)
        made: Tensor = exponential(given, bases if tokens is None else bases[tokens], torch.float32).log_().neg_()
        if len(noisy) == len(keys):
            return made
        found: Tensor = made.new_zeros(len(keys), *made.shape[1:])
        found[noisy] = made
        return found


def _race(
    width: int,
    tokens: list[list[int]],
    arrivals: list[list[float]],
    logs: list[list[float]],
    phi: list[float],
    times: list[float],
) -> list[tuple[int, int, float, float]]:
    """The first ``width`` children of one row to arrive: parent, token, log-probability of the path, time.

    For a few dozen children, plain numbers are faster than array operations.
    """
    runners = []
    for parent, (firsts, above, start) in enumerate(zip(arrivals, phi, times, strict=True)):
        rate = math.exp(above)
        for token, arrival, log in zip(tokens[parent], firsts, logs[parent], strict=True):
            possible = rate > 0 and arrival < math.inf
            time = start + (arrival - firsts[0]) / rate if possible else math.inf
            runners.append((parent, token, above + log if time < math.inf else -math.inf, time))
    return sorted(runners, key=lambda runner: runner[3])[:width]
