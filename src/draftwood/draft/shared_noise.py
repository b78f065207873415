"""Shared-noise trees of a fixed shape: children are ranked by ``log q + G_t``, with the target's own noise."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.draft.level import Level
from draftwood.sampling import warping

_SPARSITY = 4  # support times this must be below the vocabulary for sparse noise to pay


def shared_scores(
    logp: Float[Tensor, "row n vocab"], rng: RoundRng, depth: int, count: int = 1
) -> Float[Tensor, "row n vocab"]:
    """The draft's perturbed scores below nodes of this depth; with ``count`` = ``n``, node ``i`` is ``i`` levels deeper."""
    tokens = _support(logp)
    noise = rng.shared(depth, count, logp.shape[-1], tokens)
    if noise is None or tokens is None:
        return logp if noise is None else logp + noise
    perturbed = logp.index_select(2, tokens) + noise
    return perturbed.new_full(logp.shape, -torch.inf).index_copy_(2, tokens, perturbed)


def _support(logp: Float[Tensor, "row n vocab"]) -> Int[Tensor, "m"] | None:
    """The tokens that are possible at some node, where they are a small part of a large vocabulary; else None.

    An accelerator makes noise for all tokens faster than the host can wait for their number, so there it is always None.
    """
    vocab = logp.shape[-1]
    if not logp.is_cpu or vocab < warping.LARGE or _SPARSITY * int((logp[0, 0] > -torch.inf).sum()) >= vocab:
        return None
    tokens = (logp > -torch.inf).flatten(0, 1).any(dim=0).nonzero().squeeze(1)
    return tokens if _SPARSITY * len(tokens) < vocab else None


@final
class SharedNoiseBranching:
    """Every node of depth ``l`` gets the ``branching[l]`` children of the highest perturbed scores."""

    name = "shared-noise"
    draw = Draw.SHARED_NOISE

    def __init__(self, branching: tuple[int, ...]) -> None:
        self._branching = branching
        self.widths = tuple(accumulate(branching, mul))
        self.branching = max(branching)

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        scores = shared_scores(logp, rng, level.depth)
        best = scores.topk(min(self._branching[level.depth], scores.shape[-1]), dim=-1)
        tokens: Int[Tensor, "row n count"] = torch.where(best.values > -torch.inf, best.indices, -1)
        return level.below_each(tokens)
