"""Trees without a draft model: chains of prompt lookup, as far as they pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, zip_longest
from operator import mul
from time import perf_counter
from typing import final

from jaxtyping import Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.draft.adaptive.budget import PLAIN_ROUND, Budget
from draftwood.draft.adaptive.candidates import CandidateTree
from draftwood.draft.adaptive.lookup import Guess, PromptLookup
from draftwood.draft.adaptive.schedule import RESTING, Schedule
from draftwood.draft.adaptive.tensors import tree_tensors
from draftwood.draft.none import root_alone
from draftwood.sampling.sampler import Sampler


@final
class GuessDrafter:
    """Drafts a guessed chain per row where a budget allows it.

    The chains depend on the texts and on past rounds alone, so every verifier is exact for them.

    Args:
        lookup: guesses from the texts.
        budgets: whether guesses are verified, and how many tokens of them, by the number of rows.
        clock: a clock in seconds; simulations have their own.
    """

    name = "lookup"
    draw = Draw.POINT_MASS
    runner = None

    def __init__(
        self, lookup: PromptLookup, budgets: Callable[[int], Budget], *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._lookup = lookup
        self._schedule = Schedule(budgets, clock)
        self._expected = 0.0

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        schedule, self._expected = self._schedule, 0.0
        schedule.begin_round(sampler.rows)
        if schedule.resting:
            return root_alone(root, RESTING)
        guesses = self._lookup.guess(sampler, limits)  # also in a plain round, whose tokens show whether they are right
        found = [guess.tokens for guess in guesses]
        size = 0 if schedule.plain else self._size(guesses, schedule.budget)
        if not size:
            schedule.end_draft()
            return root_alone(root, PLAIN_ROUND if schedule.plain else "a guess does not pay" if any(found) else "no guess")
        trees = [CandidateTree(row.tokens[-1]) for row in sampler.rows]
        for tree, guess in zip(trees, guesses, strict=True):
            tree.add_chain(guess.tokens[:size], guess.probabilities[:size])
        made = tree_tensors(trees, [list(range(len(tree.tokens))) for tree in trees], root.device)
        longer = size < max(map(len, found))
        stop = "more nodes do not pay" if longer else "the guess ends"
        return DraftTree(**made._asdict(), branching=1, draw=self.draw, stop=stop)

    def _size(self, guesses: Sequence[Guess], budget: Budget) -> int:
        """How many tokens of each guess the target scores."""
        if not budget.shows_guess([guess.probabilities for guess in guesses]):
            return 0
        rows = [accumulate(guess.probabilities, mul) for guess in guesses]
        means = [math.fsum(nth) / len(guesses) for nth in zip_longest(*rows, fillvalue=0.0)]
        size = budget.tree_size(means)
        self._expected = math.fsum(means[:size])
        return size

    def commit(self, this_round: Round) -> None:
        began = self._schedule.clock()
        if self._schedule.resting:
            self._schedule.end_rest(this_round)
            return
        self._lookup.learn(this_round.tokens)
        if self._schedule.learns:
            self._schedule.end_round(this_round, self._expected, 0.0, began)
