"""Independent chains, the baseline: SpecInfer (arXiv 2305.09781) and SpecTr (arXiv 2310.15141) draw with replacement."""

from __future__ import annotations

from typing import final

from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.draft.level import Level


@final
class IndependentChains:
    """``width`` chains of ``length`` tokens, drawn independently; equal tokens stay separate nodes."""

    name = "iid"
    draw = Draw.INDEPENDENT

    def __init__(self, width: int, length: int) -> None:
        self.widths = (width,) * length
        self.branching = width

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        count = self.branching if level.depth == 0 else 1
        child = level.first + level.tokens.shape[1]  # one slot per child: a node may draw several times
        return level.below_each(rng.independent(logp, count, child, 1 + sum(self.widths)))
