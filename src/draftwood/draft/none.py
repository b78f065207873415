"""No draft: plain autoregressive decoding is the same loop with a tree of one node, the root."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, final

import numpy as np
from jaxtyping import Bool, Int

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.sampling.sampler import Sampler

FAILED: Final = "the drafter failed"


@cache
def _facts(rows: int) -> tuple[Int[np.ndarray, "row 1"], Bool[np.ndarray, "row 1"], Bool[np.ndarray, "row 1 1"]]:
    """Parents (and depths), valid and ancestors of trees of one node; the same arrays in every round."""
    valid = np.ones((rows, 1), np.bool_)
    return np.zeros((rows, 1), np.int64), valid, valid[:, :, None]


def root_alone(root: Sequence[int], stop: str | None = None, error: Exception | None = None) -> DraftTree:
    """Trees of one node; ``stop`` and ``error`` say why."""
    zeros, valid, ancestors = _facts(len(root))
    return DraftTree(
        tokens=np.array(root, np.int64).reshape(-1, 1),
        parents=zeros,
        depths=zeros,
        valid=valid,
        ancestors=ancestors,
        draw=Draw.POINT_MASS,
        stop=stop,
        error=error,
    )


@final
class NoDraft:
    """Always the root alone."""

    name = "ar"
    draw = Draw.POINT_MASS
    runner = None

    def draft(self, root: Sequence[int], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        return root_alone(root)

    def commit(self, this_round: Round) -> None:
        """Nothing to learn."""
