"""Counter-based randomness: every random choice of a round is a pure function of (seed, stream, position, slot, token).

Nothing here keeps state, so the same request gives the same text whatever the batch, the device or the order of the
questions. Streams are separate by purpose: a noise used both to propose and to correct would bias the output. Only the
shared stream is used twice, on purpose, by a shared-noise drafter and the coupled verifier.

Sources: Gumbel-max and Gumbel-top-k (Kool et al. 2019, "Stochastic Beams and Where to Find Them"); the integer mixing is
the finaliser of SplitMix64 / MurmurHash3.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.errors import ConfigError

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_BULK_LIMIT: Final = 1 << 24  # values; above it the noise of a round is made level by level
_AHEAD: Final = 1 << 15  # values of shared noise that are made ahead
MAX_SEED: Final = (1 << 63) - 1


class Stream(IntEnum):
    """What a random number is for."""

    DRAFT = 0
    ACCEPT = 1
    TOKEN = 2
    SHARED = 3


class Beam(NamedTuple):
    """The best candidates of one level of a stochastic beam search, best first, ``[row, width]`` each.

    A stochastic beam is a race: a path of probability ``exp(phi)`` arrives after an exponential time of that rate, which is
    ``exp(-G)`` of its perturbed log-probability ``G``.

    Attributes:
        parents, tokens: places among the asking nodes, and tokens.
        phi: log-probability of the path; -inf marks places that no candidate fills.
        times: when the path arrived, float64.
    """

    parents: Int[Tensor, "row width"]
    tokens: Int[Tensor, "row width"]
    phi: Float[Tensor, "row width"]
    times: Float[Tensor, "row width"]


@runtime_checkable
class Choices(Protocol):
    """Every random choice of one round. ``first`` numbers the asking nodes, ``of`` is how many will ask in this round."""

    def ordered(
        self, log_q: Float[Tensor, "row node vocab"], count: int, first: int, of: int
    ) -> Int[Tensor, "row node count"]:
        """An ordered sample without replacement at each node (Gumbel-top-k); -1 where the support is exhausted."""
        ...

    def independent(
        self, log_q: Float[Tensor, "row node vocab"], count: int, first: int, of: int
    ) -> Int[Tensor, "row node count"]:
        """``count`` independent draws at each node; -1 where a law has no support. Here ``first`` numbers the children."""
        ...

    def beam(
        self,
        log_q: Float[Tensor, "row node vocab"],
        phi: Float[Tensor, "row node"],
        times: Float[Tensor, "row node"],
        width: int,
        first: int,
        of: int,
    ) -> Beam:
        """One level of stochastic beam search below nodes with these ``phi`` and ``times``."""
        ...

    def accept(
        self, target: Float[Tensor, "row"], draft: Float[Tensor, "row"], node: Sequence[int], of: int
    ) -> Bool[Tensor, "row"]:
        """True with probability ``min(1, target / draft)``, per row, for ``node`` of ``of``; node 0 does not ask."""
        ...

    def token(self, law: Float[Tensor, "row vocab"]) -> Int[Tensor, "row"]:
        """One token per row from probabilities that need not be normalised; never one of probability zero."""
        ...

    def shared(self, offset: int, count: int, vocab: int) -> Float[Tensor, "row count vocab"] | None:
        """The Gumbel noise of the ``count`` text positions that follow the root by ``1 + offset``; None stands for zero."""
        ...


_SHIFTS: Final = tuple(np.uint64(n) for n in (30, 27, 31))
_FACTORS: Final = (np.uint64(_MIX_1), np.uint64(_MIX_2))
_STEP: Final = np.uint64(_GOLDEN)
_DOWN_TO_52_BITS: Final = np.uint64(12)
_STREAMS: Final = np.arange(len(Stream), dtype=np.uint64)
_Counters: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


def _mix(x: _Counters) -> _Counters:
    x = (x ^ (x >> _SHIFTS[0])) * _FACTORS[0]
    x = (x ^ (x >> _SHIFTS[1])) * _FACTORS[1]
    mixed: _Counters = x ^ (x >> _SHIFTS[2])
    return mixed


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= (1 << 63) else x


@final
class Noise:
    """The noise of a batch of requests, one seed per row.

    Args:
        seeds: one integer in ``[0, 2**63)`` per row.
        device: where the noise is made.
        greedy: zero noise; every choice then is the best candidate (temperature 0).

    Raises:
        ConfigError: a seed out of range.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu", *, greedy: bool = False) -> None:
        for seed in seeds:
            if not 0 <= seed <= MAX_SEED:
                raise ConfigError(f"seed {seed} is out of range: give an integer from 0 to {MAX_SEED}")
        self.seeds = list(seeds)
        self.device = torch.device(device)
        self.greedy = greedy

    def select(self, rows: Sequence[int]) -> Noise:
        """The noise of some of the rows."""
        return Noise([self.seeds[r] for r in rows], self.device, greedy=self.greedy)

    def at(self, positions: Sequence[int]) -> RoundNoise:
        """The choices of the round whose roots stand at these text positions (0-based), one per row."""
        return RoundNoise(self, positions)


def token_bases(vocab: int, device: torch.device) -> Int[Tensor, "vocab"]:
    """The token part of the counter; made once per vocabulary and device."""
    key = (vocab, str(device))
    if key not in _TOKEN_BASES:
        counters: _Counters = np.arange(1, vocab + 1, dtype=np.uint64) * _STEP
        _TOKEN_BASES[key] = torch.from_numpy(_mix(counters).view(np.int64)).to(device)
    return _TOKEN_BASES[key]


_TOKEN_BASES: dict[tuple[int, str], Tensor] = {}


def uniform(keys: Int[Tensor, "*batch 1"], bases: Int[Tensor, "n"]) -> Float[Tensor, "*batch n"]:
    """Uniform numbers strictly inside (0, 1), float64, 52 bits, from 64-bit keys and per-token counters, both mixed."""
    x = keys ^ bases
    # Arithmetic shifts stand for logical ones: torch has no unsigned 64-bit shift on CUDA. The sign, which the last of them
    # spreads, moves the number by half of the interval.
    x.mul_(_signed(_MIX_1)).bitwise_xor_(x >> 29)
    x.mul_(_signed(_MIX_2)).bitwise_right_shift_(12)
    return x.double().mul_(2.0**-52).add_(0.5 + 2.0**-53)


@final
class RoundNoise:
    """:class:`Choices` by Gumbel noise. Keys: (seed, stream, root position, slot); the shared stream: (seed, position).

    The root position grows in every round, so no number is ever used in two rounds; reusing one would leave each round's
    marginal law right and the joint law of the text wrong.
    """

    def __init__(self, noise: Noise, positions: Sequence[int]) -> None:
        self._greedy = noise.greedy
        self._device = noise.device
        self._positions: _Counters = np.asarray(positions, dtype=np.uint64)[:, None]
        seeds: _Counters = np.asarray(noise.seeds, dtype=np.uint64)[:, None] * _STEP
        self._streams = _mix(seeds + _STREAMS)
        roots: _Counters = self._positions * _STEP
        self._roots = _mix(self._streams + roots)  # [row, stream]
        self._draft: Float[Tensor, "row slot vocab"] | None = None
        self._accept: np.ndarray[Any, np.dtype[np.float64]] | None = None
        self._shared: Float[Tensor, "row position vocab"] | None = None

    def _keys(self, stream: Stream, first: int, count: int) -> Int[Tensor, "row slot 1"]:
        slots: _Counters = np.arange(first + 1, first + count + 1, dtype=np.uint64) * _STEP
        roots: _Counters = self._roots[:, stream, None]
        return self._tensor(_mix(roots + slots))

    def _shared_keys(self, first: int, stop: int) -> Int[Tensor, "row position 1"]:
        ahead: _Counters = np.arange(first + 1, stop + 1, dtype=np.uint64)
        stream: _Counters = self._streams[:, Stream.SHARED, None]
        following: _Counters = (self._positions + ahead) * _STEP
        return self._tensor(_mix(stream + following))

    def _tensor(self, keys: _Counters) -> Int[Tensor, "row slot 1"]:
        return torch.from_numpy(keys.view(np.int64)).to(self._device).unsqueeze(-1)

    def _uniform(self, stream: Stream, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One uniform number strictly inside (0, 1) per row and slot, made on the host."""
        slots: _Counters = np.arange(1, count + 1, dtype=np.uint64) * _STEP
        bits: _Counters = _mix(self._roots[:, stream, None] + slots) >> _DOWN_TO_52_BITS
        return np.ldexp(bits.astype(np.float64) + 0.5, -52)

    def _exponential(self, stream: Stream, first: int, count: int, vocab: int) -> Float[Tensor, "row count vocab"]:
        return uniform(self._keys(stream, first, count), token_bases(vocab, self._device)).log_().neg_()

    def _arrivals(self, log_q: Float[Tensor, "row node vocab"], first: int, of: int) -> Float[Tensor, "row node vocab"]:
        """Arrival times: exponential with rate ``q``, infinite where ``q = 0``; ``1 / q`` when greedy."""
        if self._greedy:
            return torch.exp(-log_q)
        rows, count, vocab = log_q.shape
        if rows * of * vocab > _BULK_LIMIT:
            return self._exponential(Stream.DRAFT, first, count, vocab).to(log_q.dtype) / log_q.exp()
        if self._draft is None:
            self._draft = self._exponential(Stream.DRAFT, 0, of, vocab).to(log_q.dtype)
        return self._draft[:, first : first + count] / log_q.exp()

    def ordered(self, log_q: Tensor, count: int, first: int, of: int) -> Tensor:
        best = self._arrivals(log_q, first, of).topk(min(count, log_q.shape[-1]), dim=-1, largest=False)
        return torch.where(best.values < torch.inf, best.indices, -1)

    def independent(self, log_q: Tensor, count: int, first: int, of: int) -> Tensor:
        if self._greedy:
            return self.ordered(log_q, 1, first, of)
        time, token = self._arrivals(log_q.repeat_interleave(count, dim=1), first, of).min(dim=-1)
        return torch.where(time < torch.inf, token, -1).view(len(log_q), -1, count)

    def beam(self, log_q: Tensor, phi: Tensor, times: Tensor, width: int, first: int, of: int) -> Beam:
        reach = min(width, log_q.shape[-1])
        # The parent arrived with its first child, and the others follow as they would follow that child: by memorylessness
        # this is Kool et al.'s conditioning, gtil = -log(exp(-T) - exp(-Z) + exp(-ghat)). Within a row only the first
        # ``width`` children can enter the beam. What is impossible comes out as infinite or NaN, both last in order.
        best = self._arrivals(log_q, first, of).topk(reach, dim=-1, largest=False)
        waits = best.values - best.values[..., :1]
        arrived = torch.addcdiv(times.unsqueeze(-1), waits.double(), phi.double().exp_().unsqueeze(-1)).flatten(1)
        chosen = arrived.topk(min(width, arrived.shape[1]), dim=-1, largest=False)
        parents = chosen.indices.div(reach, rounding_mode="floor")
        tokens = best.indices.flatten(1).gather(1, chosen.indices)
        phi_child = log_q.flatten(1).gather(1, torch.add(tokens, parents, alpha=log_q.shape[-1])) + phi.gather(1, parents)
        return Beam(parents, tokens, phi_child.masked_fill_(~(chosen.values < torch.inf), -torch.inf), chosen.values)

    def accept(self, target: Tensor, draft: Tensor, node: Sequence[int], of: int) -> Tensor:
        if self._accept is None:
            self._accept = self._uniform(Stream.ACCEPT, of)
        u = torch.from_numpy(self._accept[np.arange(len(node)), node]).to(self._device)
        accepted: Tensor = (u * draft < target) & (target > 0)
        return accepted

    def token(self, law: Tensor) -> Tensor:
        if self._greedy:
            return law.argmax(dim=-1)
        reached = law.cumsum(dim=-1, dtype=torch.float64)
        # Inverse of the cumulative law; it grows at possible tokens only, and u < 1 keeps the point below its end.
        u = torch.from_numpy(self._uniform(Stream.TOKEN, 1)).to(self._device)
        return torch.searchsorted(reached, reached[:, -1:] * u, right=True).squeeze(1)

    def shared(self, offset: int, count: int, vocab: int) -> Tensor | None:
        if self._greedy:
            return None
        have = 0 if self._shared is None else int(self._shared.shape[1])
        if self._shared is None or have < offset + count:
            # Drafters ask level by level: after the first, a few positions are made ahead, as one large call is cheaper.
            keys = self._shared_keys(have, max(offset + count, have + _AHEAD // vocab if have else 0))
            fresh = uniform(keys, token_bases(vocab, self._device)).log_().neg_().log_().neg_().float()
            self._shared = fresh if self._shared is None else torch.cat([self._shared, fresh], dim=1)
        return self._shared[:, offset : offset + count]
