"""Rounds that only measure what trees cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, linear_regression
from typing import Final, final

from draftwood.draft.adaptive.learnt import Costs

PLAIN: Final = 0
_GROUP: Final = 3  # rounds of one size; the first is not counted
_SIZES: Final = (2, 4, 8, 14)  # nodes without the root
TRIAL: Final[Sequence[int]] = (
    *(PLAIN,) * 4,  # the first reads the prompt
    *(size for nodes in _SIZES for size in (*(nodes,) * _GROUP, PLAIN, PLAIN)),
)
"""The sizes of a trial's trees, round by round. Forwards of SmolLM2 on two cores have a knee between 4 and 8 tokens."""


@final
class CostTrial:
    """A :class:`draftwood.draft.adaptive.budget.Budget` whose trees have given sizes. Only their costs are measured.

    Of equal rounds the fastest counts: other processes may delay one.

    Args:
        sizes: nodes of the trees, round by round, without the root; later rounds have no tree.
    """

    learns = True

    def __init__(self, sizes: Sequence[int] = TRIAL) -> None:
        self._sizes = iter(sizes)
        self._size = self._last = PLAIN
        self._rounds: dict[int, float] = {}  # size of a tree -> seconds of a round without its levels
        self._levels: dict[int, float] = {}  # nodes of a forward -> seconds

    def begin_text(self) -> None:
        """Nothing to begin."""

    def begin_round(self) -> bool:
        self._last, self._size = self._size, next(self._sizes, PLAIN)
        return self._size == PLAIN

    def shows_guess(self, chains: Sequence[Sequence[float]]) -> bool:
        return False

    def another_level(self, depth: int, above: float, nodes: int) -> bool:
        return True

    def min_frontier_value(self, depth: int) -> float:
        return 0.0

    def min_node_value(self) -> float:
        return 0.0

    def end_level(self, depth: int, above: float, gain: float, nodes: int, seconds: float | None) -> None:
        if seconds is not None:
            _keep_least(self._levels, nodes, seconds)

    def tree_size(self, values: Sequence[float], *, drawn: bool = False) -> int:
        return min(self._size, len(values))

    def end_round(self, nodes: int, expected: float, tokens: float, drafting: float, seconds: float) -> None:
        if self._last == self._size:  # else engines have prepared themselves for a new size
            _keep_least(self._rounds, nodes - 1, seconds - drafting)

    @property
    def costs(self) -> Costs | None:
        """What was measured; None if the text ended before there was a tree of a known size."""
        trees, levels = dict(self._rounds), self._levels
        base = trees.pop(PLAIN, 0.0)
        if not (base and trees and levels):
            return None
        node, mean_nodes, mean = _line(trees)
        node = min(node, max(0.0, mean - base) / mean_nodes)  # nodes take at most what exceeds a plain round
        frontier_node, mean_frontier, mean_level = _line(levels)
        return Costs(
            base=base,
            tree=max(0.0, mean - base - node * mean_nodes),
            node=node,
            change=0.0,
            level=max(0.0, mean_level - frontier_node * (mean_frontier - 1.0)),
            frontier_node=frontier_node,
        )


def _keep_least(seconds: dict[int, float], key: int, new: float) -> None:
    seconds[key] = min(new, seconds.get(key, new))


def _line(seconds: Mapping[int, float]) -> tuple[float, float, float]:
    """The slope of seconds by numbers, 0 at least, and the means of both."""
    slope = linear_regression([*seconds], [*seconds.values()]).slope if len(seconds) > 1 else 0.0
    return max(0.0, slope), fmean(seconds), fmean(seconds.values())
