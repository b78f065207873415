"""Tests against two faults of the target's scores: all of them times a factor, or that of one token shifted.

The likelihood ratios of a faulty distribution over the target's multiply to the wealth of a bet on that fault
(:mod:`draftwood.exactness.evidence`). The same distributions say which faults would be found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.exactness.evidence import of_wealth

FACTORS: Final = (0.8, 0.9, 0.95, 1.05, 1.1, 1.25)
SHIFT: Final = 0.5
_NINE_IN_TEN: Final = 1.2816  # standard deviations below the mean


class Detectable(NamedTuple):
    """Faults that are found nine times in ten, if all rounds have them.

    Attributes:
        below, above: the factors on all scores that are nearest to 1; None if none is found.
        share: tokens of this share of the text or more are found if :data:`SHIFT` is added to their score; None if none is.
    """

    below: float | None
    above: float | None
    share: float | None

    def words(self) -> Iterator[str]:
        """A phrase for each kind of fault that is found."""
        if factors := [f"{factor:g}" for factor in (self.below, self.above) if factor is not None]:
            yield f"scores times {' or '.join(factors)}"
        if self.share is not None:
            yield f"{SHIFT:+g} on the score of a token that is {self.share:.1%} of the text"


@final
class ScoreFaults:
    """Bets on faults of the scores, for texts of one target."""

    def __init__(self, vocab: int) -> None:
        # The log wealth, and its mean and variance if there is the fault.
        self._factors, self._shifts = (torch.zeros(3, bets, dtype=torch.float64) for bets in (len(FACTORS), vocab))
        self._shares, self._count = torch.zeros(vocab, dtype=torch.float64), 0

    def add(self, logp: Float[Tensor, "token vocab"], tokens: Int[Tensor, "token"]) -> None:
        """Add tokens and the target's distributions at their prefixes."""
        for at, factor in enumerate(FACTORS):
            other = (factor * logp).log_softmax(-1)
            ratio = (other - logp).masked_fill(logp == -torch.inf, 0.0)
            mean = (other.exp() * ratio).sum(-1)
            self._factors[0, at] += ratio.gather(1, tokens.unsqueeze(1)).double().sum()
            self._factors[1, at] += mean.double().sum()
            self._factors[2, at] += ((other.exp() * ratio.square()).sum(-1) - mean.square()).double().sum()
        probs = logp.exp()
        norm = torch.log1p(probs * math.expm1(SHIFT))
        other = probs * math.exp(SHIFT) / norm.exp()
        self._shifts[0] += SHIFT * tokens.bincount(minlength=logp.shape[1]) - norm.double().sum(0)
        self._shifts[1] += (SHIFT * other - norm).double().sum(0)
        self._shifts[2] += (SHIFT**2 * other * (1 - other)).double().sum(0)
        self._shares += probs.double().sum(0)
        self._count += len(tokens)

    def p_values(self) -> Iterator[tuple[str, float]]:
        """Names and p-values of the tests."""
        yield "scores, factor", of_wealth(self._factors[0])
        yield "scores, one token", of_wealth(self._shifts[0])

    def detectable(self, level: float) -> Detectable:
        """The faults that are found at a level."""

        def found(bets: Tensor) -> Tensor:
            return bets[1] - _NINE_IN_TEN * bets[2].clamp(min=0.0).sqrt() >= math.log(bets.shape[1] / level)

        factors = [factor for factor, seen in zip(FACTORS, found(self._factors).tolist(), strict=True) if seen]
        shares, order = (self._shares / max(1, self._count)).sort(descending=True)
        seen = int(found(self._shifts)[order].long().cumprod(0).sum())  # the commonest tokens, as far as all are found
        return Detectable(
            below=max((factor for factor in factors if factor < 1), default=None),
            above=min((factor for factor in factors if factor > 1), default=None),
            share=float(shares[seen - 1]) if seen else None,
        )
