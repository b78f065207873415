"""What texts reveal together: whether tokens depend on others that they should not depend on.

Given its own prefix, a token that is drawn afresh knows nothing of how earlier tokens, or those of other texts, were picked.
Two tests ask this of pairs of tokens. *Noise*: is the later token likelier to be what the earlier one's Gumbel noise would
pick (:mod:`draftwood.exactness.reuse`)? *Order*: are their places, with the tokens ordered by number, correlated, as they
are if one uniform number was used for both?
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

from draftwood.core.rng import CounterRng
from draftwood.exactness.evidence import STAKES, of_pairs, of_rare, of_wealth, wealth
from draftwood.exactness.reuse import LIKELY, ratios

LAGS: Final = tuple(range(1, 9))
ROUNDED: Final = 0.0005  # of tokens that follow their noise, those that two forwards may pick differently


@final
@dataclass(frozen=True, kw_only=True)
class Text:
    """New tokens and what the target alone says of them.

    Attributes:
        prompt: token ids before them.
        tokens: their ids.
        distribution: the target's probabilities at each.
        places: from 0 to 1 in it by token number, uniform within a token's own share.
    """

    prompt: list[int]
    tokens: Int[Tensor, "token"]
    distribution: Float[Tensor, "token vocab"]
    places: Float[Tensor, "token"]

    @cached_property
    def likely(self) -> Int[Tensor, "token likely"]:
        """The likeliest tokens at each place."""
        found: Tensor = self.distribution.topk(min(LIKELY, self.distribution.shape[1]), dim=-1).indices
        return found


def by_number(
    distribution: Float[Tensor, "token vocab"], tokens: Int[Tensor, "token"], generator: torch.Generator
) -> Tensor:
    """Places of tokens in their distributions, which need not be normalised, in the order of their numbers."""
    token = tokens.unsqueeze(1)
    below = distribution.double().cumsum(1)
    own, end = distribution.double().gather(1, token).squeeze(1), below.gather(1, token).squeeze(1)
    share = torch.rand(len(tokens), generator=generator, dtype=torch.float64)
    places: Tensor = ((end - (1 - share) * own) / below[:, -1]).clamp(0.0, 1.0)
    return places


def pair_ratios(now: Text, then: Text, at: Sequence[int], before: Sequence[int]) -> Float[Tensor, "pair"]:
    """Likelihood ratios, same noise over fresh noise, of the tokens of ``now`` at some places, given those of ``then``."""
    here, there = torch.tensor(at), torch.tensor(before)
    tokens, earlier = now.likely[here], then.tokens[there]
    return ratios(
        now.distribution[here.unsqueeze(1), tokens],
        then.distribution[there.unsqueeze(1), tokens],
        tokens,
        now.distribution[here, earlier],
        then.distribution[there, earlier],
        earlier,
        now.tokens[here],
    )


@final
class Pairs:
    """Pairs of tokens that should be independent."""

    def __init__(self) -> None:
        self._wealth = torch.zeros(len(STAKES), dtype=torch.float64)
        self._places: list[tuple[float, float]] = []

    def add(self, ratio: Float[Tensor, "pair"], now: Tensor, then: Tensor) -> None:
        """Likelihood ratios, and the places of both."""
        self._wealth += wealth(ratio)
        self._places += zip(now.tolist(), then.tolist(), strict=True)

    def found(self, name: str) -> Iterator[tuple[str, float]]:
        """Names and p-values of the tests."""
        if self._places:
            yield f"{name}, noise", of_wealth(self._wealth)
        if (p_value := of_pairs(self._places)) is not None:
            yield f"{name}, order", p_value


@final
class Texts:
    """Tests of many texts, batch by batch."""

    def __init__(self) -> None:
        self._lags = [Pairs() for _ in LAGS]
        self._next, self._same = Pairs(), Pairs()

    def add(self, batch: Sequence[Text]) -> None:
        """Texts with neighbouring seeds."""
        for text in batch:
            self._serial(text)
        for before, text in pairwise(batch):
            _across(self._next, text, before)
        last: dict[tuple[int, ...], Text] = {}
        for i, text in enumerate(batch):
            twin = last.get(tuple(text.prompt))
            if twin is not None and twin is not batch[i - 1]:  # neighbours are judged already
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
            pairs.add(ratio, text.places[lag:], text.places[:-lag])

    def found(self) -> Iterator[tuple[str, float]]:
        """Names and p-values of the tests."""
        for lag, pairs in zip(LAGS, self._lags, strict=True):
            yield from pairs.found(f"serial, lag {lag}")
        yield from self._next.found("rows, next seed")
        yield from self._same.found("rows, same prompt")


def _across(pairs: Pairs, text: Text, other: Text) -> None:
    """Tokens of two texts at the same places, counted from the beginning of their prompts."""
    first = max(len(text.prompt), len(other.prompt))
    count = min(len(t.prompt) + len(t.tokens) for t in (text, other)) - first
    if count > 0:
        at, before = ([first - len(t.prompt) + i for i in range(count)] for t in (text, other))
        pairs.add(pair_ratios(text, other, at, before), text.places[at], other.places[before])


@final
class Choice:
    """Whether a matching verifier's tokens are the target's own choice with the noise of their seed and place."""

    def __init__(self, allowed: float) -> None:
        self._allowed, self._count, self._of = allowed, 0, 0

    def add(self, text: Text, seed: int) -> None:
        """Count the tokens that lie below the best one by more than rounding explains."""
        noise = CounterRng([seed]).at([len(text.prompt) - 1]).shared(0, len(text.tokens), text.distribution.shape[1])
        scores = text.distribution.log() + torch.as_tensor(noise)[0]
        gaps = scores.amax(1) - scores.gather(1, text.tokens.unsqueeze(1)).squeeze(1)
        gaps = gaps[gaps < torch.inf]  # what is just outside top-p here may be just inside in another forward
        self._count += int((gaps > self._allowed).sum())
        self._of += len(gaps)

    def found(self) -> Iterator[tuple[str, float]]:
        """Name and p-value of the test."""
        if self._of:
            yield "choice", of_rare(self._count, self._of, ROUNDED)
