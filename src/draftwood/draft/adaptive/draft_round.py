"""One round of a best-first tree: the candidates of every row, and their limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from draftwood.core.log_probs import Distributions
from draftwood.core.rng import RoundRng
from draftwood.draft.adaptive.budget import Budget
from draftwood.draft.adaptive.candidates import CandidateTree
from draftwood.draft.adaptive.estimates import mean_row
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
        distributions: functions that return the draft's distributions at the nodes that it has scored, in order.
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
    distributions: list[Callable[[], Distributions]] = field(default_factory=list)
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

    def no_frontier(self, depth: int) -> str:
        """Why no candidate of this depth is expanded."""
        return "no candidate within the node budget" if depth < max(self.limits) else "length limit"

    def end_level(self, depth: int, above: float, nodes: int, ended: float) -> None:
        """Report a level to the budget; it began where the level before ended."""
        if self.joined:
            return
        seconds, self._began = ended - self._began, ended
        self.drafting += seconds
        self.budget.end_level(depth, above, self.values, nodes, None if self.behind else seconds)
        self.behind = False
