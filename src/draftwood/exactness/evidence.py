"""PIT values, and p-values of single tests that are valid far out in the tails.

At levels of one in a million a normal approximation fails where events are rare. Such tests bet instead: a gambler bets on
the alternative at fair odds. If the engine is exact, the gambler's wealth is a martingale of mean 1. It ever reaches
``1 / alpha`` with probability at most ``alpha`` (Ville's inequality), for any number of tokens and any dependence on the
past. Several bets are averaged; the average is a bet again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

STAKES: Final = (0.05, 0.2, 0.5, 0.9)  # shares of the wealth that are bet on a likelihood ratio
TILTS: Final = (-1.0, -0.3, -0.1, 0.1, 0.3, 1.0)  # alternatives: shifts of an event's log-odds
FACTORS: Final = (0.7, 0.85, 0.95, 1.05, 1.15, 1.4)  # alternatives: factors on an event's probability
_MAX_RATIO: Final = 8.0  # the most that FACTORS may change the odds, so that no single event decides by rounding
FEW: Final = 30  # with fewer values, neither their mean nor their correlation is tested


def wealth(ratios: Float[Tensor, "n"]) -> Float[Tensor, "stake"]:
    """The log wealth of each stake after these likelihood ratios, each of mean 1 given the earlier ones."""
    stakes = torch.tensor(STAKES, dtype=torch.float64).unsqueeze(1)
    return torch.log1p(stakes * (ratios.double() - 1)).sum(dim=1)


def of_wealth(logs: Float[Tensor, "bet"]) -> float:
    """The p-value of several bets with equal shares of the initial wealth."""
    return min(1.0, math.exp(min(0.0, math.log(len(logs)) - float(logs.logsumexp(0)))))


def of_events(chances: Sequence[float], happened: Sequence[bool]) -> float:
    """The p-value of events with these probabilities, each given the earlier events.

    The alternatives shift all log-odds by one amount, or multiply all probabilities by one factor.
    """
    chance = torch.tensor(chances, dtype=torch.float64).clamp(0.0, 1.0)
    event = torch.tensor(happened)
    tilts = torch.tensor(TILTS, dtype=torch.float64).unsqueeze(1)
    tilted = tilts * event - torch.log1p(chance * torch.expm1(tilts))
    other = torch.tensor(FACTORS, dtype=torch.float64).unsqueeze(1) * chance
    other = torch.minimum(torch.maximum(other, 1 - _MAX_RATIO * (1 - chance)), 1 - (1 - chance) / _MAX_RATIO)
    ratio = torch.where(event, other / chance, (1 - other) / (1 - chance))  # NaN where neither is possible
    scaled = ratio.nan_to_num(nan=1.0, posinf=_MAX_RATIO).log()
    return of_wealth(torch.cat([tilted.sum(dim=1), scaled.sum(dim=1)]))


def pit(
    probs: Float[Tensor, "n vocab"],
    tokens: Int[Tensor, "n"],
    share: Float[Tensor, "n"],
    order: Float[Tensor, "n vocab"] | None = None,
) -> Float[Tensor, "n"]:
    """The PIT values of tokens: the share of the probability before each one, with ``share`` of its own.

    Args:
        probs: need not be normalised.
        order: the key by which tokens are sorted; equal ones, and all without it, are sorted by id.
    """
    token, probs = tokens.unsqueeze(1), probs.double()
    before = torch.arange(probs.shape[1]) < token
    if order is not None:
        own = order.gather(1, token)
        before = (order < own) | ((order == own) & before)
    found = (probs * before).sum(1) + share * probs.gather(1, token).squeeze(1)
    return (found / probs.sum(1)).clamp(0.0, 1.0)


def of_mean(values: Sequence[float]) -> float | None:
    """The two-sided p-value of the mean of values uniform in (0, 1); None for too few of them."""
    if len(values) < FEW:
        return None
    return _of_score(math.fsum(value - 0.5 for value in values) * math.sqrt(12 / len(values)))


def of_pairs(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The two-sided p-value of the correlation of pairs of values uniform in (0, 1); None for too few pairs."""
    if len(pairs) < FEW:
        return None
    return _of_score(12 * math.fsum((a - 0.5) * (b - 0.5) for a, b in pairs) / math.sqrt(len(pairs)))


def _of_score(score: float) -> float:
    return math.erfc(abs(score) / math.sqrt(2))


def of_rare(count: int, of: int, most: float) -> float:
    """The p-value of ``count`` events in ``of`` trials, each of probability at most ``most`` (Chernoff's bound)."""
    share = count / of
    if share <= most:
        return 1.0
    rest = (1 - share) * math.log((1 - share) / (1 - most)) if share < 1 else 0.0
    return math.exp(-of * (share * math.log(share / most) + rest))
