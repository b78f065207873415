"""Top-k, top-p and min-p: the tokens of a distribution that stay possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LARGE: Final = 16384  # vocabularies of this size and above get sparse distributions
_LIKELY: Final = 192  # tokens that top-p and min-p sort at first
_TIES: Final = 64  # tokens that may tie with the last of top-k before another try is needed


@final
@dataclass(frozen=True)
class Truncation:
    """Top-k, then top-p, then min-p, each applied to what the one before leaves; 0, 1 and 0 leave everything."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __call__(
        self, scores: Float[Tensor, "*batch vocab"]
    ) -> tuple[Float[Tensor, "*batch n"], Int[Tensor, "*batch n"] | None]:
        """As :data:`draftwood.core.log_probs.Cut`: the tokens are listed if the vocabulary is large."""
        return self.likeliest(scores) if scores.shape[-1] >= LARGE else (self.dense(scores), None)

    def dense(self, scores: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """The scores, -inf for tokens that are not possible any more."""
        values, tokens = self.likeliest(scores)
        return torch.full_like(scores, -torch.inf).scatter_(-1, tokens, values)

    def likeliest(self, scores: Float[Tensor, "*batch vocab"]) -> tuple[Float[Tensor, "*batch n"], Int[Tensor, "*batch n"]]:
        """The tokens that stay.

        All three steps keep the first tokens in falling order of scores (top-k with ties of the last one), so only these are
        sorted. Of equal scores at the cut of top-p, the tokens with the largest ids stay. Each attempt costs one host sync.
        A second attempt is needed where the distribution is flat.

        Returns:
            Scores in falling order, -inf for dropped tokens, and their token ids. The best token always stays.
        """
        top_k, top_p, min_p = self.top_k, self.top_p, self.min_p
        vocab, count = scores.shape[-1], (top_k or _LIKELY) + _TIES
        total = (
            None if top_k or top_p == 1 else _weights(scores, scores.amax(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True)
        )
        while True:
            ordered, tokens = scores.topk(min(count, vocab), dim=-1)
            keep = _kept(ordered, total, top_k, top_p, min_p)
            # A score equal to the last one may have more tokens than were found. They count among top-k's tokens too.
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


def _weights(scores: Float[Tensor, "*batch n"], highest: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch n"]:
    """Probabilities up to a factor, in double precision: the native library, which sums likewise, keeps the same tokens."""
    return (scores.double() - highest).exp()


def _kept(
    ordered: Float[Tensor, "*batch n"], total: Float[Tensor, "*batch 1"] | None, top_k: int, top_p: float, min_p: float
) -> Bool[Tensor, "*batch n"]:
    """Which of the best scores, in falling order, stay; NaN stays, and raises an error later.

    ``total`` is the weight of all scores; None where top-k leaves only a part of them.
    """
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k:
        keep = ~(ordered < ordered[..., min(top_k, ordered.shape[-1]) - 1, None])
    if top_p < 1:
        weights = _weights(ordered, ordered[..., :1])
        if total is None:
            total = weights.masked_fill(~keep, 0.0).sum(dim=-1, keepdim=True)
        keep = keep & ~(weights.cumsum(dim=-1) - weights >= top_p * total)
    if min_p > 0:
        keep = keep & ~(ordered < ordered[..., :1] + math.log(min_p))
    return keep
