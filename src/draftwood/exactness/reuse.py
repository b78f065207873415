"""The likelihood ratio of a token under the Gumbel noise of an earlier token, over fresh noise.

With exponential noises ``E``, a pick is the first arrival: ``argmin E[z] / p[z]``. Let ``x`` be picked from ``then``. Its
arrival ``m = E[x] / then[x]`` is exponential with rate 1, and every other token still has ``E[z] > m then[z]``.

With the same noise, the arrivals from ``now`` are ``m r[x]`` for ``x`` and ``m r[z] + Exp(now[z])`` for the others, where
``r = then / now``. Let ``H(s)`` be the sum of ``relu(s now[z] - then[z])`` over ``z != x``. With ``m`` integrated out, ``x``
is picked again with probability ``1 / (1 + H(r[x]))``. Another token ``y`` is picked with probability ``now[y]`` times the
integral of ``1 / (1 + H(s))^2`` over ``s`` from ``r[y]`` to ``r[x]`` (0 if ``r[y]`` is larger).

``H`` is piecewise linear. On a piece from ``a`` to ``b`` the integral is ``(b - a) / ((1 + H(a)) (1 + H(b)))``.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

LIKELY: Final = 32  # tokens that are distinguished; the others count as one, which costs statistical power only
_TINY: Final = 1e-30  # keeps divisors above 0


def ratios(
    now: Float[Tensor, "pair likely"],
    then: Float[Tensor, "pair likely"],
    tokens: Int[Tensor, "pair likely"],
    again: Float[Tensor, "pair"],
    before: Float[Tensor, "pair"],
    earlier: Int[Tensor, "pair"],
    token: Int[Tensor, "pair"],
) -> Float[Tensor, "pair"]:
    """Likelihood ratios, same noise over fresh noise. Their mean over tokens drawn from ``now`` is 1.

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
    return torch.where(before > 0, found, torch.ones_like(found))  # before is 0 by rounding only: no evidence


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
