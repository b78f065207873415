"""The seconds of a draft's levels, learnt by least squares."""

from __future__ import annotations

from typing import final

from draftwood.core.estimates import Plane
from draftwood.draft.adaptive.learnt import Costs
from draftwood.draft.adaptive.settings import AdaptiveSettings


@final
class LevelCost:
    """Seconds of a level: ``begin [first level] + level + frontier_node * (frontier - 1)``.

    A drafter that proposes all levels in one pass makes it at the first one, so each further level takes much less time.

    Args:
        settings: how fast the past is forgotten.
        first: the terms before a level is timed.
        weight: observations that these count for.

    Attributes:
        begin, level, frontier_node: seconds, as above.
    """

    def __init__(self, settings: AdaptiveSettings, first: Costs, weight: float) -> None:
        self.begin, self.level, self.frontier_node = first.begin, first.level, first.frontier_node
        prior = first.frontier_node, first.begin
        self._plane = Plane(settings.forget, settings.outlier, settings.prior_weight, prior)
        self._plane.start(first.level + first.begin / 2, 0.0, 0.5, weight)

    def age(self, keep: float) -> None:
        """Old times count less."""
        self._plane.age(keep)

    def add(self, depth: int, frontier: int, seconds: float) -> None:
        """Record a level."""
        plane = self._plane
        plane.add(frontier - 1.0, float(not depth), seconds)
        self.frontier_node, self.begin = (max(0.0, slope) for slope in plane.slopes())
        self.level = max(0.0, plane.mean - self.frontier_node * plane.mean_1 - self.begin * plane.mean_2)
