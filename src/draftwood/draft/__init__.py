"""Drafters: each grows a tree of likely continuations behind the last committed token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.sampling import Sampler
from draftwood.core.tree import DraftTree


@runtime_checkable
class Drafter(Protocol):
    """Grows one tree per row and round.

    What may depend on what: whether a place in the tree exists may depend on anything except the identity of the token
    drawn there and what is drawn below it (shared-noise and point-mass trees are free of this rule).

    Attributes:
        name: as written on the command line.
        draw: how siblings are chosen above temperature 0 (at temperature 0 every tree is a point mass).
        max_length: the longest text in tokens, None if unlimited.
        forward_seconds: wall time spent in forwards of a draft model.
    """

    @property
    def name(self) -> str: ...

    @property
    def draw(self) -> Draw: ...

    @property
    def max_length(self) -> int | None: ...

    @property
    def forward_seconds(self) -> float: ...

    def clear(self) -> None:
        """All rows leave, as with :meth:`draftwood.runners.protocols.Runner.clear`."""
        ...

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """New rows, behind those that are there: prompts without their last token, and what an encoder reads. Between rounds
        only."""
        ...

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        """A tree per row below ``root``, no deeper than the row's limit (which may be 0)."""
        ...

    def commit(self, this_round: Round) -> None:
        """Learn what was kept of the last tree."""
        ...

    def drop(self, rows: Sequence[int]) -> None:
        """These rows leave; the others keep their order. Between rounds only."""
        ...
