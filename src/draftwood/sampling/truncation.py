"""Top-k, top-p and min-p: the tokens of a distribution that stay possible."""

from __future__ import annotations

import math
from typing import Final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_LIKELY: Final = 192  # tokens that top-p and min-p sort at first
_TIES: Final = 64  # tokens that may tie with the last of top-k before another try is needed


def likeliest(
    scores: Float[Tensor, "*batch vocab"], top_k: int, top_p: float, min_p: float
) -> tuple[Float[Tensor, "*batch n"], Int[Tensor, "*batch n"]]:
    """The tokens that stay under top-k, then top-p, then min-p, each applied to what the previous one leaves.

    All three keep the first tokens in falling order of scores (top-k with ties of the last one), so only these are sorted.
    Of equal scores at the cut of top-p, the tokens with the largest ids stay. Each attempt costs one host sync; a second
    attempt is needed where the distribution is flat.

    Returns:
        Scores in falling order, -inf for dropped tokens, and their token ids. The best token always stays.
    """
    vocab, count = scores.shape[-1], (top_k or _LIKELY) + _TIES
    log_total = None if top_k or top_p == 1 else scores.logsumexp(dim=-1, keepdim=True)
    while True:
        ordered, tokens = scores.topk(min(count, vocab), dim=-1)
        keep = _kept(ordered, log_total, top_k, top_p, min_p)
        # A score equal to the last one may have more tokens than were found. They belong to the sum of top-k's tokens too.
        if count >= vocab or not bool((keep & ~(ordered > ordered[..., -1:])).any() | _ties_beyond(ordered, top_k)):
            break
        count *= 8
    if top_p < 1 and bool((keep[..., :-1] & (ordered[..., 1:] == ordered[..., :-1])).any()):
        tokens = tokens.sort(dim=-1, descending=True).values
        ordered, indices = scores.gather(-1, tokens).sort(dim=-1, descending=True, stable=True)
        tokens = tokens.gather(-1, indices)
    return ordered.masked_fill(~keep, -torch.inf), tokens


def _ties_beyond(ordered: Float[Tensor, "*batch n"], top_k: int) -> Bool[Tensor, ""]:
    """Whether more tokens than these may tie with the last one of top-k."""
    last, found = ordered[..., top_k - 1], ordered[..., -1]
    return ((last == found) & (last > -torch.inf)).any() & bool(top_k)


def _kept(
    ordered: Float[Tensor, "*batch n"], log_total: Float[Tensor, "*batch 1"] | None, top_k: int, top_p: float, min_p: float
) -> Bool[Tensor, "*batch n"]:
    """Which of the best scores, in falling order, stay; NaN stays, and raises an error later.

    ``log_total`` is the log-sum-exp of all scores; None where top-k leaves only a part of them.
    """
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k:
        keep = ~(ordered < ordered[..., min(top_k, ordered.shape[-1]) - 1, None])
    if top_p < 1:
        if log_total is None:
            log_total = ordered.masked_fill(~keep, -torch.inf).logsumexp(dim=-1, keepdim=True)
        probs = (ordered - log_total).exp()
        keep = keep & ~(probs.cumsum(dim=-1) - probs >= top_p)
    if min_p > 0:
        keep = keep & ~(ordered < ordered[..., :1] + math.log(min_p))
    return keep
