"""No draft at all: plain autoregressive decoding is the same loop with a tree that is only its root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from jaxtyping import Int
from torch import Tensor

from draftwood.noise import Choices
from draftwood.rounds import Round
from draftwood.sampling import Law
from draftwood.tree import DraftTree, Draw, TreeBuilder


@final
class NoDraft:
    """Always the bare root."""

    name = "ar"
    draw = Draw.POINT_MASS
    max_length: int | None = None
    forward_seconds = 0.0

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """Nothing to remember."""

    def draft(self, root: Int[Tensor, "row"], law: Law, choices: Choices, limits: Sequence[int]) -> DraftTree:
        return TreeBuilder(root, 1).build(branching=0, draw=self.draw, draft_laws=None)

    def commit(self, this_round: Round) -> None:
        """Nothing to learn."""

    def select(self, rows: Sequence[int]) -> None:
        """Nothing to drop."""
