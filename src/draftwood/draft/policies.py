"""How the nodes of one level get their children: a class for each method of drawing a tree level by level."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.log_probs import Pending
from draftwood.core.rng import Beam, RoundRng
from draftwood.draft.level import Level
from draftwood.sampling.best import best_tokens

_EMPTY = (0, 0, -torch.inf, torch.inf)  # padding: parents, tokens, phi, times


@final
class IndependentChains:
    """``width`` chains of ``length`` tokens, drawn independently; equal tokens stay separate nodes.

    The baseline: SpecInfer (arXiv 2305.09781) and SpecTr (arXiv 2310.15141) draw with replacement.
    """

    name = "iid"
    draw = Draw.INDEPENDENT

    def __init__(self, width: int, length: int) -> None:
        self.widths = (width,) * length

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        count = self.widths[0] if level.depth == 0 else 1
        child = level.first + level.tokens.shape[1]  # one slot per child: a node may draw several times
        return level.below_each(rng.independent(logp, count, child))


@final
class ConstantBranching:
    """Every node of depth ``l`` gets ``branching[l]`` children.

    RSD-C (arXiv 2402.14160, algorithm 3) draws them without replacement, by Gumbel-top-k. A chain is branching 1. With
    shared noise they are those of the highest scores under the target's own noise.
    """

    def __init__(self, branching: tuple[int, ...], draw: Draw = Draw.WITHOUT_REPLACEMENT) -> None:
        self.draw = draw
        self._branching = branching
        self.widths = tuple(accumulate(branching, mul))
        drawn = "chain" if max(branching) == 1 else "rsd-c"
        self.name = "shared-noise" if draw is Draw.SHARED_NOISE else drawn

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        count = self._branching[level.depth]
        if self.draw is not Draw.SHARED_NOISE:
            return level.below_each(rng.ordered(logp, count, level.first))
        scores = Pending(scores=logp, cuts=[None] * len(logp), vocab=logp.shape[-1])
        best = best_tokens(scores, rng, level.depth, count)
        return level.below_each(torch.as_tensor(best.tokens, device=logp.device))


@final
class StochasticBeam:
    """RSD-S: ``width`` sequences drawn without replacement at every depth up to ``length``; all levels are kept.

    Source: stochastic beam search, arXiv 2402.14160, algorithm 5; Kool et al. 2019.
    """

    name = "rsd-s"
    draw = Draw.WITHOUT_REPLACEMENT

    def __init__(self, width: int, length: int) -> None:
        self.widths = (width,) * length

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        width = self.widths[0]
        phi = torch.zeros_like(logp[..., 0]) if level.phi is None else level.phi
        times = phi.double() if level.times is None else level.times
        beam = rng.beam(logp, phi, times, width, level.first)
        missing = width - beam.tokens.shape[1]
        if missing:  # too few candidates: the level is padded to its width, so that nodes keep their numbers
            beam = Beam(
                *(torch.nn.functional.pad(part, (0, missing), value=empty) for part, empty in zip(beam, _EMPTY, strict=True))
            )
        tokens = torch.where(beam.phi > -torch.inf, beam.tokens, -1)
        return level.below(tokens, beam.parents, beam.phi, beam.times)
