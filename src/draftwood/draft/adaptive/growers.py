"""Grows candidates with a draft model, level by level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, final

from draftwood.core.log_probs import Pending
from draftwood.core.rng import RoundRng
from draftwood.core.tree import TreeBuilder
from draftwood.draft.adaptive.budget import UNPROFITABLE, Budget
from draftwood.draft.adaptive.candidates import CandidateTree
from draftwood.draft.adaptive.estimates import mean_row
from draftwood.draft.adaptive.expand import Expander
from draftwood.runners.protocols import Runner
from draftwood.sampling.sampler import Sampler


class TreeShape(NamedTuple):
    """The largest tree: nodes without the root, expanded nodes per level, and levels."""

    nodes: int
    width: int
    depth: int


@final
@dataclass(kw_only=True)
class DraftRound:
    """One round of a drafter: the candidates of every row, and their limits.

    Attributes:
        trees: one per row, with the root and perhaps a guessed chain.
        sampler, rng, limits: as in :meth:`draftwood.draft.Drafter.draft`.
        budget: decides on each forward, and learns from it.
        clock: a clock in seconds.
        joined: a row is in its first round, of which the budget learns nothing. It reads a prompt, and a drafter of hidden
            states does not know the row's text yet.
        behind: the draft model has not read all text, so the next forward's seconds say nothing about a level.
        drafting: seconds of the levels so far.
        ranked: per row the root and the best candidates, the best first (:meth:`rank`).
        values: the path probabilities of these without the root; means over the rows.
        kept: per row, the candidates that the target scores.
        distributions: the draft's distributions, one entry per level.
        stop: why the trees did not grow further, in a few words.
        looked: seconds of the draft, where it brought no tree.
    """

    trees: list[CandidateTree]
    sampler: Sampler
    rng: RoundRng
    limits: Sequence[int]
    budget: Budget
    clock: Callable[[], float]
    joined: bool
    behind: bool
    drafting: float = 0.0
    ranked: list[list[int]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    kept: list[list[int]] = field(init=False)
    distributions: list[Pending] = field(default_factory=list)
    stop: str = "no guess pays"
    looked: float = 0.0
    _began: float = 0.0

    def __post_init__(self) -> None:
        self._began, self.kept = self.clock(), [[0] for _ in self.trees]

    @property
    def root(self) -> list[int]:
        """The last token of each row's text."""
        return [tree.tokens[0] for tree in self.trees]

    def above(self, frontiers: Sequence[list[int]]) -> float:
        """Probability that the text runs through the frontiers and not on to a guessed child; a mean over the rows."""
        rows = zip(self.trees, frontiers, strict=True)
        return sum(tree.off_guess(i) for tree, frontier in rows for i in frontier) / len(self.trees)

    def rank(self, nodes: int) -> None:
        """Rank the candidates, of which ``nodes`` are kept at most."""
        self.ranked = [tree.ranked(nodes) for tree in self.trees]
        rows = zip(self.trees, self.ranked, strict=True)
        self.values = mean_row([[math.exp(tree.log_probs[i]) for i in best[1:]] for tree, best in rows])

    def end_level(self, depth: int, above: float, nodes: int) -> None:
        """Report a level to the budget; it began where the level before ended."""
        if self.joined:
            return
        ended = self.clock()
        seconds, self._began = ended - self._began, ended
        self.drafting += seconds
        self.budget.end_level(depth, above, self.values, nodes, None if self.behind else seconds)
        self.behind = False


@final
class LevelGrower:
    """Grows trees by one forward per level, for the best candidates of that level.

    Args:
        runner: the draft model.
        expander: gives candidates their children.
        shape: the largest tree.
    """

    def __init__(self, runner: Runner, expander: Expander, shape: TreeShape) -> None:
        self.runner = runner
        self.expander = expander
        self.shape = shape

    def expand(self, draft: DraftRound) -> None:
        """Grow every row's tree within the row's limit and the budget."""
        frontiers = [[0] if limit > 0 else [] for limit in draft.limits]
        (nodes, width, depths), builder = self.shape, TreeBuilder(draft.root)
        cuts = [-math.inf] * len(frontiers)  # per row, what a candidate must have to be among the best
        for depth in range(depths):
            if not any(frontiers):
                draft.stop = "no candidate within the node budget" if depth < max(draft.limits) else "length limit"
                return
            above, largest = draft.above(frontiers), max(map(len, frontiers))
            if not draft.budget.another_level(depth, above, largest):
                draft.stop = "another level does not pay" if depth else UNPROFITABLE
                return
            self._expand(draft, builder, frontiers, depth, cuts)
            draft.rank(nodes)
            cuts = [tree.log_probs[best[-1]] for tree, best in zip(draft.trees, draft.ranked, strict=True)]
            draft.end_level(depth, above, largest)
            min_value = draft.budget.min_frontier_value(depth + 1)
            frontiers = [
                tree.frontier(depth + 1, width, cut, min_value, row.stops) if depth + 1 < limit else []
                for tree, cut, row, limit in zip(draft.trees, cuts, draft.sampler.rows, draft.limits, strict=True)
            ]
        draft.stop = "depth limit"

    def _expand(
        self, draft: DraftRound, builder: TreeBuilder, frontiers: list[list[int]], depth: int, cuts: list[float]
    ) -> None:
        """Score the frontiers, which the builder of what the runner reads gets, and add their children to the trees."""
        trees, first = draft.trees, builder.size if depth else 0
        for tree, frontier, row in zip(trees, frontiers, builder.rows, strict=True):
            for number, candidate in enumerate(frontier, first):
                tree.numbers[candidate] = number
                if candidate:
                    row.add(tree.tokens[candidate], tree.numbers[tree.parents[candidate]])
        scores = self.runner.extend(*builder.nodes(first))
        draft.distributions.append(draft.sampler.draft(scores.logits, partial(builder.prefixes, first), scores.tokens))
        # Every possible node has its own noise slot, so a smaller level does not shift the slots below it.
        first = 1 + self.shape.width * (depth - 1) if depth else 0
        grown = self.expander.expand(draft.distributions[-1], draft.rng, depth, first, [*map(len, frontiers)])
        for tree, frontier, children, cut in zip(trees, frontiers, grown, cuts, strict=True):
            least = cut if len(tree.tokens) > self.shape.nodes else -math.inf  # in a full tree no other child is kept
            for candidate, its in zip(frontier, children, strict=False):  # padding comes last
                if its.tokens:
                    tree.add_children(candidate, its, least)
