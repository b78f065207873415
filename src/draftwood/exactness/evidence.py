"""P-values of single tests, valid far out in the tails.

Tests at levels of one in a million cannot trust a normal approximation where events are rare. Such tests bet instead: what a
fair gambler owns who bets on the alternative is a martingale of mean 1 if the engine is exact, so that it ever reaches
``1 / alpha`` with probability ``alpha`` at most (Ville's inequality), whatever the number of tokens and however the
probabilities depend on the past. Several bets are averaged, which is a bet again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

STAKES: Final = (0.05, 0.2, 0.5, 0.9)  # shares of the gambler's money that are put on a likelihood ratio
TILTS: Final = (-1.0, -0.3, -0.1, 0.1, 0.3, 1.0)  # changes of the log-odds of an event
FACTORS: Final = (0.7, 0.85, 0.95, 1.05, 1.15, 1.4)  # and of its probability
_ODDS: Final = 8.0  # by which such a factor changes the odds at most, so that no single event decides by rounding
FEW: Final = 30  # places; their mean or their products are not judged if there are fewer


def wealth(ratios: Float[Tensor, "n"]) -> Float[Tensor, "stake"]:
    """Log of what each stake has become after these likelihood ratios, each of mean 1 given those before it."""
    stakes = torch.tensor(STAKES, dtype=torch.float64).unsqueeze(1)
    return torch.log1p(stakes * (ratios.double() - 1)).sum(dim=1)


def of_wealth(logs: Float[Tensor, "bet"]) -> float:
    """The p-value of several bets with equal shares of the money at the start."""
    return min(1.0, math.exp(min(0.0, math.log(len(logs)) - float(logs.logsumexp(0)))))


def of_events(chances: Sequence[float], happened: Sequence[bool]) -> float:
    """The p-value of events with these probabilities, each given those before it, against all odds changed by one amount,
    and against all probabilities changed by one factor."""
    chance = torch.tensor(chances, dtype=torch.float64).clamp(0.0, 1.0)
    event = torch.tensor(happened)
    tilts = torch.tensor(TILTS, dtype=torch.float64).unsqueeze(1)
    tilted = tilts * event - torch.log1p(chance * torch.expm1(tilts))
    other = torch.tensor(FACTORS, dtype=torch.float64).unsqueeze(1) * chance
    other = torch.minimum(torch.maximum(other, 1 - _ODDS * (1 - chance)), 1 - (1 - chance) / _ODDS)
    ratio = torch.where(event, other / chance, (1 - other) / (1 - chance))  # NaN where neither can be
    scaled = ratio.nan_to_num(nan=1.0, posinf=_ODDS).log()
    return of_wealth(torch.cat([tilted.sum(dim=1), scaled.sum(dim=1)]))


def of_mean(places: Sequence[float]) -> float | None:
    """The p-value of the mean of uniform places, two-sided; None for too few of them."""
    if len(places) < FEW:
        return None
    return _of_score(math.fsum(place - 0.5 for place in places) * math.sqrt(12 / len(places)))


def of_pairs(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The p-value of the correlation of pairs of uniform places, two-sided; None for too few of them."""
    if len(pairs) < FEW:
        return None
    return _of_score(12 * math.fsum((a - 0.5) * (b - 0.5) for a, b in pairs) / math.sqrt(len(pairs)))


def _of_score(score: float) -> float:
    return math.erfc(abs(score) / math.sqrt(2))


def of_rare(count: int, of: int, most: float) -> float:
    """The p-value of ``count`` events among ``of`` whose probability is at most ``most`` each (Chernoff's bound)."""
    share = count / of
    if share <= most:
        return 1.0
    rest = (1 - share) * math.log((1 - share) / (1 - most)) if share < 1 else 0.0
    return math.exp(-of * (share * math.log(share / most) + rest))
