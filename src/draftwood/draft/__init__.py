"""Drafters: each grows a tree of likely continuations of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.runners.protocols import Runner
from draftwood.sampling.sampler import Sampler


@runtime_checkable
class Drafter(Protocol):
    """Grows one tree per row and round.

    What it knows of a row, it keeps with it (:meth:`draftwood.sampling.rows.Row.state`).

    The existence of a drawn node may depend on anything except its own token and the tokens below it. Shared-noise and
    point-mass trees are free of this rule.

    Attributes:
        name: the name on the command line.
        draw: how siblings are chosen above temperature 0 (at temperature 0 every tree is a point mass).
    """

    name: str
    draw: Draw

    @property
    def runner(self) -> Runner | None:
        """The draft model, whose rows come and go with the batch's; None without one."""
        ...

    def draft(self, root: Sequence[int], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        """Draft a tree per row below ``root``, no deeper than the row's limit (which may be 0).

        An error of the draft model ends the growth (:attr:`draftwood.core.tree.DraftTree.error`). Nodes that were drawn
        stay, as the rule above demands: a drafter that drops them, or cannot tell which to keep, raises.
        """
        ...

    def commit(self, this_round: Round) -> None:
        """End the round: :attr:`draftwood.core.rounds.Round.joined` are the nodes that the texts took, and the rows hold
        their tokens already."""
        ...
