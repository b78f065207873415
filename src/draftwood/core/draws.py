"""How the children of a node are chosen: what decides which verifiers are exact for a tree."""

from __future__ import annotations

from enum import StrEnum


class Draw(StrEnum):
    """How the children of a node were chosen; it fixes the distribution ``Q_j`` of the j-th child."""

    WITHOUT_REPLACEMENT = "without_replacement"  # Q_1 = q, Q_{j+1} = norm(Q_j with x_j removed)
    INDEPENDENT = "independent"  # Q_j = q
    POINT_MASS = "point_mass"  # Q_j is certain
    HYBRID = "hybrid"  # Q_1 = norm(q without the certain siblings) of a drawn first child; the other children are certain
    SHARED_NOISE = "shared_noise"  # ranked with the target's own noise: a match, never an acceptance by chance


ALL_DRAWS = frozenset(Draw)
DRAWS_WITH_LOG_PROBS = ALL_DRAWS - {Draw.SHARED_NOISE}  # a child has a distribution, and may be accepted by chance
