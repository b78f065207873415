"""Tests of independence between tokens of one text and of different texts.

Given its own prefix, a freshly drawn token is independent of how earlier tokens, or tokens of other texts, were picked. Two
tests check pairs of tokens. *Noise*: is the later token likelier to be the pick of the earlier one's Gumbel noise
(:func:`draftwood.exactness.evidence.ratios`)? *Order*: are their PIT values, with tokens ordered by id, correlated? They
are if both tokens came from one uniform number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.exactness.evidence import LIKELY, STAKES, of_pairs, of_rare, of_wealth, ratios, wealth
from draftwood.sampling.counter_rng import CounterRng

LAGS: Final = tuple(range(1, 9))  # distances in tokens between the two tokens of a pair
ROUNDED: Final = 0.0005  # share of tokens that two forwards may pick differently with the same noise


@final
@dataclass(frozen=True, kw_only=True)
class Text:
    """New tokens and the target's distributions at their prefixes.

    Attributes:
        prompt: token ids before the new tokens.
        tokens: ids of the new tokens.
        probs: the target's probabilities at each.
        pit: their PIT values, with tokens ordered by id.
    """

    prompt: list[int]
    tokens: Int[Tensor, "token"]
    probs: Float[Tensor, "token vocab"]
    pit: Float[Tensor, "token"]

    @cached_property
    def likely(self) -> Int[Tensor, "token likely"]:
        """The ids of the likeliest tokens at each position."""
        ids: Tensor = self.probs.topk(min(LIKELY, self.probs.shape[1]), dim=-1).indices
        return ids


def pair_ratios(now: Text, then: Text, at: Sequence[int], before: Sequence[int]) -> Float[Tensor, "pair"]:
    """Likelihood ratios, same noise over fresh noise: tokens of ``now`` at ``at`` given those of ``then`` at ``before``."""
    here, there = torch.tensor(at), torch.tensor(before)
    tokens, earlier = now.likely[here], then.tokens[there]
    return ratios(
        now.probs[here.unsqueeze(1), tokens],
        then.probs[there.unsqueeze(1), tokens],
        tokens,
        now.probs[here, earlier],
        then.probs[there, earlier],
        earlier,
        now.tokens[here],
    )


@final
class Pairs:
    """Two tests of pairs of tokens that should be independent."""

    def __init__(self) -> None:
        self._wealth = torch.zeros(len(STAKES), dtype=torch.float64)
        self._pit: list[tuple[float, float]] = []

    def add(self, ratio: Float[Tensor, "pair"], now: Tensor, then: Tensor) -> None:
        """Add pairs: their likelihood ratios, and the PIT values of both tokens."""
        self._wealth += wealth(ratio)
        self._pit += zip(now.tolist(), then.tolist(), strict=True)

    def p_values(self, name: str) -> Iterator[tuple[str, float]]:
        """Names and p-values of the tests."""
        if self._pit:
            yield f"{name}, noise", of_wealth(self._wealth)
        if (p_value := of_pairs(self._pit)) is not None:
            yield f"{name}, order", p_value


@final
class Texts:
    """Tests of many texts, batch by batch."""

    def __init__(self) -> None:
        self._lags = [Pairs() for _ in LAGS]
        self._next, self._same = Pairs(), Pairs()

    def add(self, batch: Sequence[Text]) -> None:
        """Add texts with consecutive seeds."""
        for text in batch:
            self._serial(text)
        for before, text in pairwise(batch):
            _across(self._next, text, before)
        last: dict[tuple[int, ...], Text] = {}
        for i, text in enumerate(batch):
            twin = last.get(tuple(text.prompt))
            if twin is not None and twin is not batch[i - 1]:  # neighbours are compared above
                _across(self._same, text, twin)
            last[tuple(text.prompt)] = text

    def _serial(self, text: Text) -> None:
        lags = [lag for lag in LAGS if lag < len(text.tokens)]
        counts = [len(text.tokens) - lag for lag in lags]
        if not lags:
            return
        at = [i for lag in lags for i in range(lag, len(text.tokens))]
        before = [i for count in counts for i in range(count)]
        split = zip(self._lags, pair_ratios(text, text, at, before).split(counts), lags, strict=False)
        for pairs, ratio, lag in split:
            pairs.add(ratio, text.pit[lag:], text.pit[:-lag])

    def p_values(self) -> Iterator[tuple[str, float]]:
        """Names and p-values of the tests."""
        for lag, pairs in zip(LAGS, self._lags, strict=True):
            yield from pairs.p_values(f"serial, lag {lag}")
        yield from self._next.p_values("rows, next seed")
        yield from self._same.p_values("rows, same prompt")


def _across(pairs: Pairs, text: Text, other: Text) -> None:
    """Add the tokens of two texts at equal positions, counted from the beginning of their prompts."""
    first = max(len(text.prompt), len(other.prompt))
    count = min(len(t.prompt) + len(t.tokens) for t in (text, other)) - first
    if count > 0:
        at, before = ([first - len(t.prompt) + i for i in range(count)] for t in (text, other))
        pairs.add(pair_ratios(text, other, at, before), text.pit[at], other.pit[before])


@final
class Choice:
    """A test of the coupled verifier: tokens are the target's own choice under the noise of their seed and position.

    Args:
        allowed: the score difference that rounding may cause.
    """

    def __init__(self, allowed: float) -> None:
        self._allowed, self._count, self._of = allowed, 0, 0

    def add(self, text: Text, seed: int) -> None:
        """Count the tokens that lie below the best one by more than rounding explains."""
        noise = CounterRng([seed]).at([len(text.prompt) - 1]).shared(0, len(text.tokens), text.probs.shape[1])
        scores = text.probs.log() + torch.as_tensor(noise)[0]
        gaps = scores.amax(1) - scores.gather(1, text.tokens.unsqueeze(1)).squeeze(1)
        gaps = gaps[gaps != torch.inf]  # a token just outside top-p here may be just inside in another forward
        self._count += int((~(gaps <= self._allowed)).sum())
        self._of += len(gaps)

    def p_values(self) -> Iterator[tuple[str, float]]:
        """Name and p-value of the test."""
        if self._of:
            yield "choice", of_rare(self._count, self._of, ROUNDED)
