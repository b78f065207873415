"""Grows candidates with a draft model, level by level."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, final

from draftwood.core.tree import TreeBuilder
from draftwood.draft.adaptive.budget import UNPROFITABLE
from draftwood.draft.adaptive.draft_round import DraftRound, TreeShape
from draftwood.draft.adaptive.expand import Expander
from draftwood.runners.protocols import Runner

if TYPE_CHECKING:
    from draftwood.draft.adaptive.block_grower import BlockGrower


@final
class LevelGrower:
    """Grows trees by one forward per level, for the best candidates of that level.

    Args:
        runner: the draft model.
        expander: gives candidates their children.
        shape: the largest tree.
        block_grower: grows all levels in one call where it takes a round; None without one.
    """

    def __init__(
        self, runner: Runner, expander: Expander, shape: TreeShape, block_grower: BlockGrower | None = None
    ) -> None:
        self.runner = runner
        self.expander = expander
        self.shape = shape
        self._block_grower = block_grower

    def expand(self, draft: DraftRound) -> None:
        """Grow every row's tree within the row's limit and the budget."""
        frontiers: list[list[int]] = [[0] if limit > 0 else [] for limit in draft.limits]
        (nodes, width, depths), builder = self.shape, TreeBuilder(draft.root)
        cuts = [-math.inf] * len(frontiers)  # per row, what a candidate must have to be among the best
        for depth in range(depths):
            if not any(frontiers):
                draft.stop = draft.no_frontier(depth)
                return
            above, largest = draft.above(frontiers), max(map(len, frontiers))
            if not draft.budget.another_level(depth, above, largest):
                draft.stop = "another level does not pay" if depth else UNPROFITABLE
                if depth:
                    draft.budget.refuse_level(depth, above)
                return
            if not depth and self._block_grower is not None and self._block_grower.takes(draft):
                self._block_grower.expand(draft)
                return
            self._expand(draft, builder, frontiers, depth, cuts)
            draft.rank(nodes)
            cuts = [tree.log_probs[best[-1]] for tree, best in zip(draft.trees, draft.ranked, strict=True)]
            draft.end_level(depth, above, largest, draft.clock())
            min_value = draft.budget.min_frontier_value(depth + 1, width)
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
        pending = draft.sampler.draft(scores.logits, partial(builder.prefixes, first), scores.tokens)
        draft.distributions.append(lambda: pending.settled)
        # Every possible node has its own noise slot, so a smaller level does not shift the slots below it.
        first = 1 + self.shape.width * (depth - 1) if depth else 0
        grown = self.expander.expand(pending, draft.rng, depth, first, [*map(len, frontiers)])
        for tree, frontier, children, cut in zip(trees, frontiers, grown, cuts, strict=True):
            least = cut if len(tree.tokens) > self.shape.nodes else -math.inf  # in a full tree no other child is kept
            for candidate, its in zip(frontier, children, strict=False):  # padding comes last
                if its.tokens:
                    tree.add_children(candidate, its, least)
