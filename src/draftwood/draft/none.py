"""No draft: plain autoregressive decoding is the same loop with a tree of one node, the root."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.sampling.sampler import Sampler

FAILED: Final = "the drafter failed"


@cache
def _root(rows: int, device: torch.device) -> tuple[Int[Tensor, "row 1"], Bool[Tensor, "row 1"], Bool[Tensor, "row 1 1"]]:
    """Parents (and depths), valid and ancestors of a tree of one node; the same tensors in every round."""
    valid = torch.ones(rows, 1, dtype=torch.bool, device=device)
    return torch.zeros(rows, 1, dtype=torch.long, device=device), valid, valid.unsqueeze(2)


def root_alone(root: Int[Tensor, "row"], stop: str | None = None, error: Exception | None = None) -> DraftTree:
    """Trees of one node; ``stop`` and ``error`` say why."""
    zeros, valid, ancestors = _root(len(root), root.device)
    return DraftTree(
        tokens=root.unsqueeze(1),
        parents=zeros,
        depths=zeros,
        valid=valid,
        ancestors=ancestors,
        branching=0,
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

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        return root_alone(root)

    def commit(self, this_round: Round) -> None:
        """Nothing to learn."""
