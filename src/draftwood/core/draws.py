"""Ways to choose the children of a node, which decide which verifiers are exact for a tree."""

from __future__ import annotations

from enum import StrEnum


class Draw(StrEnum):
    """A way to choose the children of a node; it determines the distribution ``Q_j`` of the j-th child."""

    WITHOUT_REPLACEMENT = "without_replacement"  # Q_1 = q, Q_{j+1} = norm(Q_j with x_j removed)
    INDEPENDENT = "independent"  # Q_j = q
    POINT_MASS = "point_mass"  # Q_j is certain
    SHARED_NOISE = "shared_noise"  # ranked with the target's own noise: accepted by matching only


ALL_DRAWS = frozenset(Draw)
FREE_DRAWS = frozenset({Draw.POINT_MASS, Draw.SHARED_NOISE})  # any tree is exact, also one that is cut after it was seen
DRAWS_WITH_LOG_PROBS = ALL_DRAWS - {Draw.SHARED_NOISE}  # a child has a distribution, and is accepted with a probability
