"""RSD-C: constant branching, children by Gumbel-top-k (arXiv 2402.14160, algorithm 3). A chain is branching 1."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import final

from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.draft.level import Level


@final
class ConstantBranching:
    """Every node of depth ``l`` gets ``branching[l]`` children, drawn without replacement."""

    draw = Draw.WITHOUT_REPLACEMENT

    def __init__(self, branching: tuple[int, ...]) -> None:
        self._branching = branching
        self.widths = tuple(accumulate(branching, mul))
        self.branching = max(branching)
        self.name = "chain" if self.branching == 1 else "rsd-c"

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        return level.below_each(rng.ordered(logp, self._branching[level.depth], level.first, level.of))
