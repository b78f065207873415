"""Best-first trees: the candidates of the largest path probability, under a budget.

Candidates come from a draft model, from prompt lookup, or from both.

A candidate's path probability estimates the probability that the output runs through it. It is the product of conditional
probabilities along the path (:class:`Expander`). With shared noise, a child's conditional probability is that of being the
target's choice, learnt from round to round. Any such tree is exact, since the verifier only matches. At temperature 0 the
noise is zero; EAGLE-2 (arXiv 2406.16858) takes the draft model's probability itself. Guesses alone depend on the texts and
on past rounds, so every verifier is exact for them.

Trees of drawn children are cut in the same way, and stay exact. The existence of a drawn node may depend on anything except
its own token and the tokens below it. Its path probability depends on the draft's distributions above it and the number of
siblings before it, and no node below has a larger one. So neither its own token nor one below decides whether it is among
the best, or whether its level is drawn. Such trees have a plain :class:`Budget`: a seed gives the same tree in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import final

import torch

from draftwood.core.draws import Draw
from draftwood.core.log_probs import Distributions
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.shapes import MAX_NODES
from draftwood.core.tree import DraftTree, TreeBuilder
from draftwood.draft.adaptive.budget import PLAIN_ROUND, RESTING, Budget
from draftwood.draft.adaptive.candidates import CandidateTree
from draftwood.draft.adaptive.draft_round import DraftRound
from draftwood.draft.adaptive.estimates import RunningMean
from draftwood.draft.adaptive.growers import LevelGrower
from draftwood.draft.adaptive.lookup import PromptLookup
from draftwood.draft.none import FAILED, root_alone
from draftwood.runners.protocols import Runner
from draftwood.sampling.sampler import Sampler


@final
class BestFirstDrafter:
    """Keeps the best nodes of a tree that a grower grows within a budget.

    Args:
        grower: adds candidates with the draft model; None without one.
        budgets: how much of the grower's shape is used, by the number of rows; all of it by default.
        lookup: guesses from the texts, which become candidates too; with a grower for shared noise only, where any tree is
            exact.
        clock: a clock in seconds; simulations have their own.
    """

    def __init__(
        self,
        grower: LevelGrower | None,
        *,
        budgets: Callable[[int], Budget] | None = None,
        lookup: PromptLookup | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.grower, self.lookup = grower, lookup
        self.name, self.draw = "lookup", Draw.POINT_MASS
        if grower is not None:
            self.name = grower.expander.name if lookup is None else "adaptive"
            self.draw = grower.expander.draw
        self._budgets, self._clock = budgets or (lambda rows: Budget()), clock
        self._budget, self._began = Budget(), 0.0  # of the round
        self._round: DraftRound | None = None  # None in a round that rests
        self._resting, self._looking = 0, RunningMean()  # rounds of the rest that are left, and seconds of a look
        self._behind = True  # the draft model has not read all of the text

    @property
    def runner(self) -> Runner | None:
        return None if self.grower is None else self.grower.runner

    def draft(self, root: Sequence[int], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        self._began, self._round, rows = self._clock(), None, sampler.rows
        before, self._budget = self._budget, self._budgets(len(rows))
        joined = not all(row.has_state(self) for row in rows)
        if joined:
            for row in rows:
                row.state(self, bool)
        if self._resting and not joined and before is self._budget:
            self._resting -= 1
            return root_alone(root, RESTING)
        self._resting = 0
        if plain := self._budget.begin_round():
            limits = [0] * len(limits)
        draft = self._round = DraftRound(
            trees=self._guessed(sampler, limits),
            sampler=sampler,
            rng=rng,
            limits=limits,
            budget=self._budget,
            clock=self._clock,
            joined=joined,
            behind=self._behind,
        )
        try:
            if self.grower is not None:
                self.grower.expand(draft)
        except Exception as error:
            if draft.distributions:
                raise  # which of the drawn nodes are the best is not known without the next level
            return root_alone(root, FAILED, error)
        if any(len(tree.tokens) > 1 for tree in draft.trees):
            self._keep_best(draft)
        if max(map(len, draft.kept)) > 1:
            return self._tree(draft, sampler.greedy)
        draft.looked = self._clock() - self._began
        return root_alone(root, PLAIN_ROUND if plain else draft.stop)

    def _guessed(self, sampler: Sampler, limits: Sequence[int]) -> list[CandidateTree]:
        """Trees of the roots, and of guessed chains if these alone pay: others would only keep the draft from running."""
        trees = [CandidateTree(row.tokens[-1]) for row in sampler.rows]
        if self.lookup is not None:
            guesses = self.lookup.guess(sampler, limits)
            if self._budget.shows_guess([guess.probabilities for guess in guesses]):
                for tree, guess in zip(trees, guesses, strict=True):
                    tree.add_chain(guess.tokens, guess.probabilities)
        return trees

    def _keep_best(self, draft: DraftRound) -> None:
        """Choose the candidates that the target scores, per row: the same number, where a row has so many."""
        if self.grower is None:
            draft.stop = "the guess ends"
        if not draft.ranked:
            draft.rank(MAX_NODES if self.grower is None else self.grower.shape.nodes)
        size = draft.budget.tree_size(draft.values)
        if size < len(draft.values):
            draft.stop = "more nodes do not pay"
        elif max(len(tree.tokens) for tree in draft.trees) > size + 1:
            draft.stop = "node budget"
        most = [size if row.nodes is None else min(size, row.nodes) for row in draft.sampler.rows]
        draft.kept = [sorted(best[: count + 1]) for best, count in zip(draft.ranked, most, strict=True)]

    def _tree(self, draft: DraftRound, greedy: bool) -> DraftTree:
        builder = TreeBuilder(draft.root)
        for row, tree, kept in zip(builder.rows, draft.trees, draft.kept, strict=True):
            numbers = {0: 0}
            for number, candidate in enumerate(kept[1:], 1):
                numbers[candidate] = number
                row.add(tree.tokens[candidate], numbers[tree.parents[candidate]])
        inner = 1 + max(max(row.parents) for row in builder.rows)
        return builder.build(
            draw=Draw.POINT_MASS if greedy else self.draw,
            ranking=partial(_distributions, draft, inner) if draft.distributions else None,
            stop=draft.stop,
        )

    def commit(self, this_round: Round) -> None:
        began, draft, tree = self._clock(), self._round, this_round.tree
        seen: list[list[int]] = [[] for _ in range(tree.rows)]
        if draft is not None:
            seen = self._learn(draft, this_round)
        if self.runner is not None:
            self.runner.commit(seen, this_round.hidden)
        if self.lookup is not None and draft is not None:
            self.lookup.learn(this_round.tokens)
        if draft is None or not draft.joined:
            drafting, tokens = 0.0 if draft is None else draft.drafting, sum(map(len, this_round.tokens)) / tree.rows
            self._budget.end_round(tree.size, tokens, drafting, self._clock() - self._began)
            if draft is not None and tree.size == 1 and not drafting:
                self._looking.add(draft.looked + self._clock() - began)
                self._resting = self._budget.rest(self._looking.value)
        self._behind = draft is None or draft.joined or not any(tree.numbers for tree in draft.trees)
        self._round = None  # frees the distributions, which are as large as the vocabulary

    def _learn(self, draft: DraftRound, this_round: Round) -> list[list[int]]:
        """Learn which children the target chose; per row, the draft model's nodes that the text took."""
        seen = []
        rows = zip(this_round.tokens, this_round.paths, this_round.joined, draft.trees, draft.kept, strict=True)
        for new, path, joined, tree, kept in rows:
            chain = [kept[node] for node in (0, *path)]
            seen.append([tree.numbers[one] for one in chain[: len(joined)] if one in tree.numbers])
            for candidate, choice in zip(chain, new, strict=True):
                if self.grower is not None and (children := tree.children.get(candidate)) is not None:
                    self.grower.expander.learn(children, choice)
        return seen


def _distributions(draft: DraftRound, inner: int) -> Distributions:
    """The draft's distributions at the first ``inner`` nodes; arbitrary at nodes without children."""
    found = Distributions.joined([level() for level in draft.distributions])
    numbers = []
    for tree, nodes in zip(draft.trees, draft.kept, strict=True):
        numbers.append([tree.numbers.get(candidate, 0) for candidate in (nodes + [0] * inner)[:inner]])
    return found.pick(torch.tensor(numbers, device=found.logp.device))
