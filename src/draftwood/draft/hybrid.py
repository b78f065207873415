"""Hybrid trees: the draft's best tokens are certain children, and one more child is drawn from the rest.

At a node with draft distribution ``q`` the certain children ``A`` are a function of the distributions. One more child may
be drawn from ``norm(q without A)``. The drawn child is verified first, then the certain ones in decreasing probability:
``Q = [norm(q without A), certain a_1, certain a_2, ...]``. In this order one child is accepted with probability
``p(A) + sum of min(p, Q_1)``, the largest that any verifier can reach: ``a`` is output at most as often as ``p(a)``, and the
drawn ``x`` at most as often as ``p(x)`` and as it was drawn. With the drawn child last, acceptance is lower.

Sources: greedy multi-draft sampling, Hu et al. 2025, arXiv 2502.18779; beams by the draft's product of probabilities as in
EAGLE-2, arXiv 2406.16858.

Why this is exact: a verifier needs two properties of a drawn child. Its existence was fixed before its token, and its
token, given everything fixed before, follows the recorded ``Q_1``. Levels are grown one after the other. The tokens of the
levels above and the draft's distributions at the parents fix ``A``, whether a child is drawn, and hence ``Q_1``. Only then
is the token drawn, with its own noise. It affects deeper levels only: its own children, and those of its neighbours through
the beam. So, given the levels above, the tree below an accepted node follows the recorded distributions, whatever its
neighbours are. Three changes would break this:

* Dropping or replacing a drawn child because its token is unlikely: the remaining tokens no longer follow ``Q_1``.
* Drawing from ``q`` itself and recording ``Q_1``, or the other way round.
* Drawing first and then taking the best of the others: ``A``, and so ``Q_1``, would depend on the drawn token.

At temperature 0 nothing is drawn: the tree consists of the certain children of the highest probability.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.draft.level import Level


@final
class HybridBranching:
    """Every node of depth ``l`` gets ``branching[l]`` children: one drawn from the rest, the others the draft's best."""

    name = "hybrid"
    draw = Draw.HYBRID

    def __init__(self, branching: tuple[int, ...]) -> None:
        self._branching = branching
        self.widths = tuple(accumulate(branching, mul))
        self.branching = max(branching)

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        count = min(self._branching[level.depth], logp.shape[-1])
        best = logp.topk(count if level.greedy else count - 1, dim=-1)
        certain = torch.where(best.values > -torch.inf, best.indices, -1)
        if level.greedy:
            return level.below_each(certain)
        rest = logp.scatter(-1, best.indices, -torch.inf)
        one = rng.independent(rest, 1, level.first, level.of)
        return level.below_each(torch.cat([one, certain], dim=-1), drawn=_first(logp, count))


@final
class HybridBeam:
    """At most ``width`` nodes at every depth up to ``length``: one drawn, the others the certain ones of the highest value.

    The value of a certain child is its parent's value times the draft's probability. The value of the drawn child is its
    parent's times the probability of the rest, which is known before the draw. The child is drawn where that is largest.
    So a node may have certain children, the drawn child, both or none.
    """

    name = "hybrid"
    draw = Draw.HYBRID

    def __init__(self, width: int, length: int) -> None:
        self.widths = (width,) * length
        self.branching = width

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        logp = logp.nan_to_num(nan=-torch.inf, neginf=-torch.inf)  # a distribution without any token must not win
        value = torch.zeros_like(logp[..., 0]) if level.phi is None else level.phi
        vocab, wanted = logp.shape[-1], self.branching - (not level.greedy)
        reach = min(wanted, vocab)  # more children of one node cannot be among the best of all
        best = logp.topk(reach, dim=-1)
        candidates = (best.values + value.unsqueeze(-1)).flatten(1)
        chosen = candidates.topk(min(wanted, candidates.shape[1]), dim=-1)
        parents = chosen.indices.div(max(1, reach), rounding_mode="floor")
        tokens = best.indices.flatten(1).gather(1, chosen.indices)
        certain = torch.where(chosen.values > -torch.inf, tokens, -1)
        if level.greedy:
            return level.below(certain, parents, chosen.values)
        rest = logp.flatten(1).scatter(1, parents * vocab + tokens, -torch.inf).view_as(logp)
        room = value + rest.logsumexp(dim=-1)
        at = room.argmax(dim=-1, keepdim=True)
        distribution = rest.take_along_dim(at.unsqueeze(-1), dim=1)
        one = rng.independent(distribution, 1, level.depth, len(self.widths)).squeeze(-1)
        return level.below(
            torch.cat([one, certain], dim=-1),
            torch.cat([at, parents], dim=-1),
            torch.cat([room.gather(1, at), chosen.values], dim=-1),
            drawn=_first(one, 1 + certain.shape[1]),
        )


def _first(like: Tensor, count: int) -> Tensor:
    """A mask of ``count`` children in the last dimension: the first is the drawn one."""
    return (torch.arange(count, device=like.device) == 0).expand(*like.shape[:-1], count)
