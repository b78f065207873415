"""RSD-S: a stochastic beam search (arXiv 2402.14160, algorithm 5; Kool et al. 2019), every level's beam kept."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.draft.level import Level
from draftwood.noise import Choices
from draftwood.tree import Draw


@final
class StochasticBeam:
    """``width`` sequences drawn without replacement at every depth up to ``length``."""

    name = "rsd-s"
    draw = Draw.WITHOUT_REPLACEMENT

    def __init__(self, width: int, length: int) -> None:
        self.widths = (width,) * length
        self.branching = width

    def grow(self, level: Level, logp: Float[Tensor, "row n vocab"], choices: Choices) -> Level:
        width = self.branching
        beam = choices.beam(logp, level.phi.to(logp.dtype), level.perturbed.to(logp.dtype), width, level.first, level.of)
        missing = width - beam.tokens.shape[1]
        if missing:  # fewer candidates than places: the level keeps its width, so that nodes keep their numbers
            beam = type(beam)(
                torch.nn.functional.pad(beam.parents, (0, missing)),
                torch.nn.functional.pad(beam.tokens, (0, missing)),
                torch.nn.functional.pad(beam.phi, (0, missing), value=-torch.inf),
                torch.nn.functional.pad(beam.perturbed, (0, missing), value=-torch.inf),
            )
        return level.below(beam.tokens, beam.parents, beam.phi > -torch.inf, phi=beam.phi, perturbed=beam.perturbed)
