"""What a round costs on this machine, for any drawn tree, from short runs of a few of them.

A round of a tree is one forward of the draft for each level, by the nodes it asks; one of the target, by all nodes; and
the rest (drawing, masks, verifying, output), which grows with levels and nodes by a line of its own for each method and
verifier. Forwards are timed alone, many of every size, since small ones need not be cheaper than larger ones; what they
take more within rounds is one factor for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final, TypeAlias, final

import numpy as np

from draftwood.core.settings import Method
from draftwood.tune.measure import Forwards, Timed, steady

Line: TypeAlias = list[tuple[int, float]]
"""Points of a piecewise linear function."""
Kind: TypeAlias = tuple[str, str]
"""Names of a method and a verifier."""

SHAPES: Final = {
    "chain": ("2", "7"),
    "rsd-s": ("2x2", "2x7", "4x3", "4x8"),
    "rsd-c": ("2-1-1", "2-2-2", "2-1-1-1-1", "3-2-2-1-1"),
}


@final
@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds per round.

    Attributes:
        level: of a draft level alone, by the nodes that are asked for children.
        target: of a target forward alone, by its nodes, the root included.
        within: how many times as long a forward takes within a round.
        rest: by method and verifier: of any round, for each level, for each node.
    """

    level: Line
    target: Line
    within: float
    rest: Mapping[Kind, tuple[float, float, float]]

    def of_round(self, method: Method, widths: Sequence[int]) -> float:
        """Seconds of a round of a method whose levels have these widths."""
        base, per_level, per_node = self.rest[method.method, method.verifier]
        rest = base + per_level * len(widths) + per_node * sum(widths)
        return self.within * _forwards(self.level, self.target, widths) + max(0.0, rest)

    def at_speed_of(self, forwards: Forwards) -> Costs:
        """The same with single forwards of another time, when the machine may have been slower or faster."""
        return replace(self, level=_means(forwards.draft), target=_means(forwards.target))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rest = {"+".join(kind): line for kind, line in self.rest.items()}
        return {"level": self.level, "target": self.target, "within": self.within, "rest": rest}


def fit(forwards: Forwards, samples: Mapping[Method, Sequence[Timed]], widths: Mapping[Method, Sequence[int]]) -> Costs:
    """Costs from single forwards and from the rounds of some methods (means, least squares).

    Args:
        samples: rounds with whole trees; of each method and verifier as many shapes as its line needs.
        widths: nodes per level of these methods' trees.
    """
    level, target = _means(forwards.draft), _means(forwards.target)
    kinds: dict[Kind, list[tuple[Sequence[int], float]]] = {}
    within = []
    for method, rounds in samples.items():
        in_models, rest = steady([one.forwards for one in rounds]), steady([one.rest for one in rounds])
        kinds.setdefault((method.method, method.verifier), []).append((widths[method], rest))
        within.append(in_models / _forwards(level, target, widths[method]))
    lines = {kind: _line(found) for kind, found in kinds.items()}
    return Costs(level=level, target=target, within=median(within), rest=lines)


def _means(found: Mapping[int, Sequence[float]]) -> Line:
    return [(nodes, steady(seconds)) for nodes, seconds in found.items() if seconds]


def _forwards(level: Line, target: Line, widths: Sequence[int]) -> float:
    """Seconds in both models. The draft is asked about the root, then about every level but the last."""
    asked = (1, *widths[:-1]) if widths else ()
    return sum(_at(level, nodes) for nodes in asked) + _at(target, 1 + sum(widths))


def _at(line: Line, nodes: int) -> float:
    places, seconds = zip(*line, strict=True)
    return float(np.interp(nodes, places, seconds))


def _line(found: Sequence[tuple[Sequence[int], float]]) -> tuple[float, float, float]:
    """Least squares; the shortest solution where the shapes do not tell all of it."""
    rows = np.array([[1.0, len(widths), sum(widths)] for widths, _ in found])
    base, per_level, per_node = np.linalg.lstsq(rows, np.array([rest for _, rest in found]), rcond=None)[0].tolist()
    return base, per_level, per_node
