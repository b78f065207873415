"""RSD-S: stochastic beam search (arXiv 2402.14160, algorithm 5; Kool et al. 2019); all levels are kept."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import Beam, RoundRng
from draftwood.draft.level import Level

_EMPTY = (0, 0, -torch.inf, torch.inf)  # padding: parents, tokens, phi, times


@final
class StochasticBeam:
    """``width`` sequences drawn without replacement at every depth up to ``length``."""

    name = "rsd-s"
    draw = Draw.WITHOUT_REPLACEMENT

    def __init__(self, width: int, length: int) -> None:
        self.widths = (width,) * length
        self.branching = width

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        width = self.branching
        phi = torch.zeros_like(logp[..., 0]) if level.phi is None else level.phi
        times = phi.double() if level.times is None else level.times
        beam = rng.beam(logp, phi, times, width, level.first, level.of)
        missing = width - beam.tokens.shape[1]
        if missing:  # too few candidates: the level is padded to its width, so that nodes keep their numbers
            beam = Beam(
                *(torch.nn.functional.pad(part, (0, missing), value=empty) for part, empty in zip(beam, _EMPTY, strict=True))
            )
        tokens = torch.where(beam.phi > -torch.inf, beam.tokens, -1)
        return level.below(tokens, beam.parents, beam.phi, beam.times)
