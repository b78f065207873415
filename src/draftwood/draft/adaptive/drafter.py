"""Best-first trees: the candidates of the largest path probability, under a budget.

A candidate's path probability estimates the probability that the output runs through it. It is the product of conditional
probabilities along the path (:class:`Expander`). With shared noise, a child's conditional probability is that of being the
target's choice, learnt from round to round. Any such tree is exact, since the verifier only matches. At temperature 0 the
noise is zero; EAGLE-2 (arXiv 2406.16858) takes the draft model's probability itself.

Trees of drawn children are cut in the same way, and stay exact. The existence of a drawn node may depend on anything except
its own token and the tokens below it. Its path probability depends on the draft's distributions above it and the number of
siblings before it, and no node below has a larger one. So neither its own token nor one below decides whether it is among
the best, or whether its level is drawn. With a :class:`FixedBudget` the tree is the same in every run of a seed. With a
:class:`draftwood.draft.adaptive.controller.Controller` its shape depends on seconds and on earlier rounds as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from time import perf_counter
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.log_probs import LogProbs
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.sampling import Sampler
from draftwood.core.tree import DraftTree
from draftwood.draft.adaptive.budget import PLAIN_ROUND, Budget, FixedBudget
from draftwood.draft.adaptive.candidates import CandidateTree
from draftwood.draft.adaptive.growers import DraftRound, Grower
from draftwood.draft.adaptive.lookup import PromptLookup
from draftwood.draft.adaptive.rest import Rest
from draftwood.draft.adaptive.tensors import TreeTensors, tree_tensors
from draftwood.draft.none import FAILED, root_alone
from draftwood.runners.protocols import Prefix


@final
class BestFirstDrafter:
    """Keeps the best nodes of a tree that a grower grows within a budget.

    Args:
        grower: adds candidates with the draft model.
        budgets: how much of the grower's shape is used, by the number of rows; all of it by default.
        lookup: guesses from the texts, which become candidates too; for shared noise only, where any tree is exact.
        clock: a clock in seconds; simulations have their own.
    """

    def __init__(
        self,
        grower: Grower,
        *,
        budgets: Callable[[int], Budget] | None = None,
        lookup: PromptLookup | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.grower = grower
        self._budgets = budgets or _everything
        self._budget: Budget = FixedBudget()
        self.lookup = lookup
        self._clock = clock
        self._began = 0.0
        self._round: DraftRound | None = None
        self._kept: list[list[int]] = []  # per row, the candidate of each tree node
        self._first = True  # the first round reads the prompts, so its seconds say nothing about costs
        self._behind = True  # the draft model has not read all of the text
        self._rest, self._looked = Rest(), 0.0  # and the seconds of this round's draft

    @property
    def name(self) -> str:
        return self.grower.expander.name if self.lookup is None else "adaptive"

    @property
    def draw(self) -> Draw:
        return self.grower.expander.draw

    @property
    def max_length(self) -> int | None:
        return self.grower.runner.max_length

    @property
    def forward_seconds(self) -> float:
        return self.grower.runner.forward_seconds

    def clear(self, *, keep: bool = False) -> None:
        self.grower.runner.clear(keep=keep)
        if self.lookup is not None:
            self.lookup.clear()

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self.grower.runner.add(texts, sources)
        if self.lookup is not None:
            self.lookup.add(texts, sources)
        self._first = self._behind = True

    def prefill(
        self,
        text: Sequence[int],
        *,
        prefix: Prefix | None = None,
        hidden: Float[Tensor, "_token width"] | None = None,
    ) -> None:
        self.grower.runner.prefill(text, prefix=prefix, hidden=hidden)

    def drop(self, rows: Sequence[int]) -> None:
        self.grower.runner.drop(rows)
        if self.lookup is not None:
            self.lookup.drop(rows)

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        self._began, budget = self._clock(), self._budgets(len(root))
        awake = self._first or budget is not self._budget
        if (resting := self._rest.begin_round(self._budget, root, sampler.texts, awake=awake)) is not None:
            return resting
        if awake:
            budget.begin_text()
        self._budget = budget
        if plain := budget.begin_round():
            limits = [0] * len(limits)
        draft = self._round = DraftRound(
            trees=self._guessed(sampler, limits),
            root=root,
            sampler=sampler,
            rng=rng,
            limits=limits,
            budget=budget,
            clock=self._clock,
            behind=self._behind,
        )
        try:
            self.grower.expand(draft)
        except Exception as error:
            if draft.distributions:
                raise  # which of the drawn nodes are the best is not known without the next level
            return root_alone(root, FAILED, error)
        self._kept = self._best(draft)
        if max(map(len, self._kept)) > 1:
            return self._tree(draft, root.device, sampler.greedy)
        self._looked = self._clock() - self._began
        return root_alone(root, PLAIN_ROUND if plain else draft.stop)

    def _guessed(self, sampler: Sampler, limits: Sequence[int]) -> list[CandidateTree]:
        """Trees of the roots, and of guessed chains if these alone pay: others would only keep the draft from running."""
        trees = [CandidateTree(text[-1]) for text in sampler.texts]
        if self.lookup is not None:
            guesses = self.lookup.guess(sampler, limits)
            if self._budget.shows_guess([guess.probabilities for guess in guesses]):
                for tree, guess in zip(trees, guesses, strict=True):
                    tree.add_chain(guess.tokens, guess.probabilities)
        return trees

    def _best(self, draft: DraftRound) -> list[list[int]]:
        """The candidates that the target scores, per row: the same number, where a row has so many."""
        trees = draft.trees
        if all(len(tree.tokens) == 1 for tree in trees):
            return [[0]] * len(trees)
        ranked = [tree.ranked(self.grower.shape.nodes) for tree in trees]
        rows = [[math.exp(tree.log_probs[i]) for i in best[1:]] for tree, best in zip(trees, ranked, strict=True)]
        means = rows[0] if len(rows) == 1 else [sum(nth) / len(rows) for nth in zip_longest(*rows, fillvalue=0.0)]
        size = self._budget.tree_size(means, drawn=self.draw is Draw.WITHOUT_REPLACEMENT)
        if size < len(means):
            draft.stop = "more nodes do not pay"
        elif max(len(tree.tokens) for tree in trees) > size + 1:
            draft.stop = "node budget"
        most = [size if limit is None else min(size, limit) for limit in draft.sampler.nodes]
        return [sorted(best[: count + 1]) for best, count in zip(ranked, most, strict=True)]

    def _tree(self, draft: DraftRound, device: torch.device, greedy: bool) -> DraftTree:
        tree = tree_tensors(draft.trees, self._kept, device)
        has_distributions = bool(draft.distributions)
        needed = has_distributions and self.draw in DRAWS_WITH_LOG_PROBS and not greedy
        return DraftTree(
            tokens=tree.tokens,
            parents=tree.parents,
            depths=tree.depths,
            valid=tree.valid,
            ancestors=tree.ancestors,
            branching=self.grower.expander.count + (self.lookup is not None),
            draw=Draw.POINT_MASS if greedy else self.draw,
            draft_log_probs=_distributions(draft, self._kept, tree) if needed else None,
            ranking=partial(_distributions, draft, self._kept, tree) if has_distributions and not needed else None,
            stop=draft.stop,
        )

    def commit(self, this_round: Round) -> None:
        began = self._clock()
        if self._rest.now:
            self.grower.runner.commit([[]] * len(self._rest.roots), self._rest.roots, this_round.hidden)
            self._behind = True
            self._rest.add(this_round, self._clock() - self._began)
            return
        if (draft := self._round) is None:
            raise RuntimeError("commit was called before draft: a round begins with a draft")
        seen, rest = [], []
        for path, new, tree, kept in zip(this_round.paths, this_round.tokens, draft.trees, self._kept, strict=True):
            chain = [kept[node] for node in (0, *path)]
            numbers = [tree.numbers.get(candidate, -1) for candidate in chain]
            seen.append([number for number in numbers if number >= 0])
            rest.append([tree.tokens[i] for i, number in zip(chain, numbers, strict=True) if number < 0])
            for candidate, choice in zip(chain, new, strict=True):
                if (children := tree.children.get(candidate)) is not None:
                    self.grower.expander.learn(children, choice)
        self.grower.runner.commit(seen, rest, this_round.hidden)
        if self.lookup is not None:
            self.lookup.learn(this_round.tokens)
        if self._budget.learns and not self._first:
            self._end_round(this_round, draft)
            if this_round.tree.size == 1 and not draft.drafting:
                self._rest.looked(self._budget, self._looked + self._clock() - began)
        self._first, self._behind = False, not any(tree.numbers for tree in draft.trees)
        self._round = None  # frees the distributions, which are as large as the vocabulary

    def _end_round(self, this_round: Round, draft: DraftRound) -> None:
        """Report the round to the budget."""
        rows = zip(draft.trees, self._kept, strict=True)
        expected = math.fsum(math.exp(tree.log_probs[i]) for tree, kept in rows for i in kept[1:])
        tree, new_tokens = this_round.tree, sum(map(len, this_round.tokens))
        seconds = self._clock() - self._began
        self._budget.end_round(tree.size, expected / tree.rows, new_tokens / tree.rows, draft.drafting, seconds)


def _distributions(draft: DraftRound, kept: Sequence[list[int]], tree: TreeTensors) -> LogProbs:
    """The draft's distributions at the nodes up to the last one with children; arbitrary at nodes without."""
    inner = 1 + int(tree.parents.max())  # host sync
    numbers = [
        [_number(draft, candidates, candidate) for candidate in (nodes + [0] * inner)[:inner]]
        for candidates, nodes in zip(draft.trees, kept, strict=True)
    ]
    return LogProbs.joined(draft.distributions).pick(torch.tensor(numbers, device=tree.tokens.device))


def _number(draft: DraftRound, tree: CandidateTree, candidate: int) -> int:
    """The place of a candidate's distribution among those of the round; 0 where there is none."""
    if not draft.by_depth:
        return tree.numbers.get(candidate, 0)
    depth = tree.depths[candidate]
    return depth if depth < draft.distributions[0].logp.shape[1] else 0


def _everything(rows: int) -> Budget:
    """Every level and every node, for any number of rows."""
    return FixedBudget()
