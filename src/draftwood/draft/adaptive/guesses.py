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
from draftwood.core.sampling import Sampler
from draftwood.core.tree import DraftTree
from draftwood.draft.adaptive.budget import PLAIN_ROUND, Budget
from draftwood.draft.adaptive.candidates import CandidateTree
from draftwood.draft.adaptive.lookup import Guess, PromptLookup
from draftwood.draft.adaptive.rest import Rest
from draftwood.draft.adaptive.tensors import tree_tensors
from draftwood.draft.none import root_alone
from draftwood.runners.protocols import ReadsAtOnce


@final
class GuessDrafter(ReadsAtOnce):
    """Drafts a guessed chain per row where a budget allows it.

    The chains depend on the texts and on past rounds alone, so every verifier is exact for them.

    Args:
        lookup: guesses from the texts.
        budgets: whether guesses are verified, and how many tokens of them, by the number of rows.
        clock: a clock in seconds; simulations have their own.
    """

    name = "lookup"
    draw = Draw.POINT_MASS
    max_length: int | None = None
    forward_seconds = 0.0

    def __init__(
        self, lookup: PromptLookup, budgets: Callable[[int], Budget], *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._lookup = lookup
        self._budgets = budgets
        self._budget: Budget | None = None
        self._clock = clock
        self._began = self._expected = 0.0
        self._first = True  # the first round reads the prompts, so its seconds say nothing about costs
        self._rest, self._looked = Rest(), 0.0  # and the seconds of this round's draft

    def clear(self, *, keep: bool = False) -> None:
        self._lookup.clear()

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._lookup.add(texts, sources)
        self._first = True

    def drop(self, rows: Sequence[int]) -> None:
        self._lookup.drop(rows)

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        self._began, self._expected = self._clock(), 0.0
        budget = self._budgets(len(root))
        awake = self._first or budget is not self._budget
        if (resting := self._rest.begin_round(self._budget, root, sampler.texts, awake=awake)) is not None:
            return resting
        if awake:
            budget.begin_text()
        self._budget = budget
        plain = budget.begin_round()
        guesses = self._lookup.guess(sampler, limits)  # also in a plain round, whose tokens show whether they are right
        found = [guess.tokens for guess in guesses]
        size = 0 if plain else self._size(guesses, budget)
        if not size:
            self._looked = self._clock() - self._began
            return root_alone(root, PLAIN_ROUND if plain else "a guess does not pay" if any(found) else "no guess")
        trees = [CandidateTree(text[-1]) for text in sampler.texts]
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
        if (budget := self._budget) is None:
            raise RuntimeError("commit was called before draft: a round begins with a draft")
        began = self._clock()
        if self._rest.now:
            self._rest.add(this_round, began - self._began)
            return
        self._lookup.learn(this_round.tokens)
        if budget.learns and not self._first:
            tree, new_tokens = this_round.tree, sum(map(len, this_round.tokens))
            seconds = self._clock() - self._began
            budget.end_round(tree.size, self._expected, new_tokens / tree.rows, 0.0, seconds)
            if tree.size == 1:
                self._rest.looked(budget, self._looked + self._clock() - began)
        self._first = False
