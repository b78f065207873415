"""PIT values, and p-values of single tests that are valid far out in the tails.

At levels of one in a million a normal approximation fails where events are rare. Such tests bet instead: a gambler bets on
the alternative at fair odds. If the engine is exact, the gambler's wealth is a martingale of mean 1. It ever reaches
``1 / alpha`` with probability at most ``alpha`` (Ville's inequality), for any number of tokens and any dependence on the
past. Several bets are averaged; the average is a bet again.

A NaN among the values has the p-value 0: nothing that follows the target brings one.
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
LIKELY: Final = 32  # tokens that are distinguished; the others count as one, which costs statistical power only
_TINY: Final = 1e-30  # keeps divisors above 0


def wealth(ratios: Float[Tensor, "n"]) -> Float[Tensor, "stake"]:
    """The log wealth of each stake after these likelihood ratios, each of mean 1 given the earlier ones."""
    stakes = torch.tensor(STAKES, dtype=torch.float64).unsqueeze(1)
    return torch.log1p(stakes * (ratios.double() - 1)).sum(dim=1)


def of_wealth(logs: Float[Tensor, "bet"]) -> float:
    """The p-value of several bets with equal shares of the initial wealth."""
    log_p = math.log(len(logs)) - float(logs.logsumexp(0))
    return 0.0 if math.isnan(log_p) else math.exp(min(0.0, log_p))


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
    return 0.0 if math.isnan(score) else math.erfc(abs(score) / math.sqrt(2))


def of_rare(count: int, of: int, most: float) -> float:
    """The p-value of ``count`` events in ``of`` trials, each of probability at most ``most`` (Chernoff's bound)."""
    share = count / of
    if share <= most:
        return 1.0
    rest = (1 - share) * math.log((1 - share) / (1 - most)) if share < 1 else 0.0
    return math.exp(-of * (share * math.log(share / most) + rest))


def ratios(
    now: Float[Tensor, "pair likely"],
    then: Float[Tensor, "pair likely"],
    tokens: Int[Tensor, "pair likely"],
    again: Float[Tensor, "pair"],
    before: Float[Tensor, "pair"],
    earlier: Int[Tensor, "pair"],
    token: Int[Tensor, "pair"],
) -> Float[Tensor, "pair"]:
    """Likelihood ratios of tokens, noise of earlier ones over fresh noise. Their mean over draws from ``now`` is 1.

    With exponential noises ``E``, a pick is the first arrival: ``argmin E[z] / p[z]``. Let ``x`` be picked from ``then``.
    Its arrival ``m = E[x] / then[x]`` is exponential with rate 1, and every other token still has ``E[z] > m then[z]``.

    With the same noise, the arrivals from ``now`` are ``m r[x]`` for ``x`` and ``m r[z] + Exp(now[z])`` for the others,
    where ``r = then / now``. Let ``H(s)`` be the sum of ``relu(s now[z] - then[z])`` over ``z != x``. With ``m`` integrated
    out, ``x`` is picked again with probability ``1 / (1 + H(r[x]))``. Another token ``y`` is picked with probability
    ``now[y]`` times the integral of ``1 / (1 + H(s))^2`` over ``s`` from ``r[y]`` to ``r[x]`` (0 if ``r[y]`` is larger).

    ``H`` is piecewise linear. On a piece from ``a`` to ``b`` the integral is ``(b - a) / ((1 + H(a)) (1 + H(b)))``.

    Args:
        now, then: probabilities of ``tokens`` in the distributions from which ``token`` and ``earlier`` were picked.
        again, before: probabilities of ``earlier`` in the same two distributions.
        token, earlier: the two picks.
    """
    picked = tokens == earlier.unsqueeze(1)
    others = [_others(part, picked, own) for part, own in ((now, again), (then, before))]
    most = before.double() / again.double().clamp(min=_TINY)
    bound = torch.minimum(others[1] / others[0].clamp(min=_TINY), most.unsqueeze(1))
    ratio, repeated = _integrals(others[0], others[1], bound, most)
    seen = (tokens == token.unsqueeze(1)) & ~picked
    column = torch.where(seen.any(1), seen.int().argmax(1), tokens.shape[1])  # the last one holds all other tokens
    other = ratio.gather(1, column.unsqueeze(1)).squeeze(1)
    found = torch.where(token == earlier, repeated / again.double().clamp(min=_TINY), other)
    return torch.where(before <= 0, 1.0, found)  # before is 0 by rounding only: no evidence


def _others(part: Float[Tensor, "pair likely"], picked: Tensor, own: Float[Tensor, "pair"]) -> Float[Tensor, "pair other"]:
    """Probabilities of the tokens without the earlier pick, and of all remaining tokens together in the last column."""
    likely = part.double().masked_fill(picked, 0.0)
    rest = (1 - own.double() - likely.sum(1)).clamp(min=0.0)
    return torch.cat([likely, rest.unsqueeze(1)], dim=1)


def _integrals(
    now: Float[Tensor, "pair other"],
    then: Float[Tensor, "pair other"],
    bound: Float[Tensor, "pair other"],
    most: Float[Tensor, "pair"],
) -> tuple[Float[Tensor, "pair other"], Float[Tensor, "pair"]]:
    """The integral from each token's bound up to ``most``, and the probability that the earlier token is picked again."""
    below = bound < most.unsqueeze(1)
    start, order = bound.sort(dim=1)
    slope, less = ((part * below).gather(1, order).cumsum(1) for part in (now, then))
    end = torch.cat([start[:, 1:], most.unsqueeze(1)], dim=1)
    high = 1 + (slope * end - less).clamp(min=0.0)
    low = 1 + (slope * start - less).clamp(min=0.0)
    pieces = (end - start) / (low * high)
    sums = pieces.flip(1).cumsum(1).flip(1)
    return torch.zeros_like(sums).scatter_(1, order, sums), 1 / high[:, -1]
