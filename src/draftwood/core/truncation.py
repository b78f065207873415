"""Top-k, top-p and min-p: which tokens of a distribution stay possible."""

from __future__ import annotations

import math
from typing import Final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_LIKELY: Final = 192  # tokens among which top-p and min-p are looked for first
_TIES: Final = 64  # tokens that may tie with the last of top-k before another try is needed


def likeliest(
    scores: Float[Tensor, "*batch vocab"], top_k: int, top_p: float, min_p: float
) -> tuple[Float[Tensor, "*batch n"], Int[Tensor, "*batch n"]]:
    """What top-k, then top-p, then min-p leave, each on the distribution that the one before it leaves: scores in falling
    order, -inf for what is dropped, and whose they are; the best token always stays.

    All three keep a beginning of the tokens in order of their scores (and, under top-k, ties with the last of them), so
    only that beginning is sorted. One host sync a try; a second try is needed where the distribution is flat.
    """
    vocab, count = scores.shape[-1], (top_k or _LIKELY) + _TIES
    whole = None if top_k or top_p == 1 else scores.logsumexp(dim=-1, keepdim=True)
    while True:
        ordered, tokens = scores.topk(min(count, vocab), dim=-1)
        keep = _kept(ordered, whole, top_k, top_p, min_p)
        if count >= vocab or not bool(keep[..., -1].any()):
            break
        count *= 8
    if top_p < 1 and bool((keep[..., :-1] & (ordered[..., 1:] == ordered[..., :-1])).any()):
        # Of equal scores the later token stays, as in transformers, which sorts the other way round.
        tokens = tokens.sort(dim=-1, descending=True).values
        ordered, places = scores.gather(-1, tokens).sort(dim=-1, descending=True, stable=True)
        tokens = tokens.gather(-1, places)
    return ordered.masked_fill(~keep, -torch.inf), tokens


def _kept(
    ordered: Float[Tensor, "*batch n"], whole: Float[Tensor, "*batch 1"] | None, top_k: int, top_p: float, min_p: float
) -> Bool[Tensor, "*batch n"]:
    """Which of the best scores, in falling order, stay; NaN stays, to be named later.

    ``whole`` is the logarithm of the sum of the whole distribution; None where top-k leaves only a part of it.
    """
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k:
        keep = ~(ordered < ordered[..., min(top_k, ordered.shape[-1]) - 1, None])
    if top_p < 1:
        if whole is None:
            whole = ordered.masked_fill(~keep, -torch.inf).logsumexp(dim=-1, keepdim=True)
        distribution = (ordered - whole).exp()
        keep = keep & ~(distribution.cumsum(dim=-1) - distribution >= top_p)
    if min_p > 0:
        keep = keep & ~(ordered < ordered[..., :1] + math.log(min_p))
    return keep
