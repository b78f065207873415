"""Rounds that look for no draft, where looking in every round would cost more than it can bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from jaxtyping import Int
from torch import Tensor

from draftwood.core.estimates import RunningMean
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.draft.adaptive.budget import Budget
from draftwood.draft.none import root_alone

RESTING: Final = "no draft has paid lately"
"""Why a tree is the root alone, in :attr:`draftwood.core.tree.DraftTree.stop`."""
_FORGET, _OUTLIER = 0.97, 3.0  # of the mean seconds of looking


@final
class Rest:
    """The rounds between two that look whether a draft pays. Such a round goes the way of plain decoding.

    Looking (the guess, its comparison with the text, the decisions and estimates) takes some fifty microseconds. That is
    nothing next to the forward of a large model, and several per cent of a small one's. The budget says how many rounds
    follow without it. Whether a round rests depends on rounds before it alone.

    Attributes:
        now: the present round rests.
        roots: in such a round, the root of every row, which a draft model has not read.
    """

    def __init__(self) -> None:
        self.now, self.roots = False, list[list[int]]()
        self._looking = RunningMean(_FORGET, _OUTLIER)
        self._left = self._rounds = 0
        self._tokens = self._seconds = 0.0

    def begin_round(
        self, budget: Budget | None, root: Int[Tensor, "row"], texts: Sequence[Sequence[int]], *, awake: bool
    ) -> DraftTree | None:
        """The tree of a resting round; None for a round that looks, before which the budget learns of the rest.

        Args:
            budget: that of the rounds before, if there were any.
            texts: of the rows, which end with their roots.
            awake: this round must look.
        """
        self.now = self._left > 0 and not awake
        if self.now:
            self._left -= 1
            self.roots = [[text[-1]] for text in texts]
            return root_alone(root, RESTING)
        if self._rounds and budget is not None:
            budget.end_rest(self._rounds, self._tokens, self._seconds)
        self._left = self._rounds = 0
        self._tokens = self._seconds = 0.0
        return None

    def add(self, this_round: Round, seconds: float) -> None:
        """Record a resting round."""
        self._rounds += 1
        self._tokens += sum(map(len, this_round.tokens)) / this_round.tree.rows
        self._seconds += seconds

    def looked(self, budget: Budget, seconds: float) -> None:
        """Record the seconds that looking took in a round without a tree."""
        self._looking.add(seconds)
        self._left = budget.rest(self._looking.value)
