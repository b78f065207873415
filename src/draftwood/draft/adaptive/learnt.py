"""The knowledge of an adaptive tree, as a value that can be stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, final

from draftwood.core.errors import ConfigError


@final
@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds, by the terms of :class:`CostModel`.

    Attributes:
        base: a round without a tree.
        tree: what any tree adds to the target's part of a round.
        node: each node of the tree.
        change: another number of nodes than the last tree's.
        level: a forward of the draft model for one node.
        frontier_node: each further node of that forward.
    """

    base: float
    tree: float
    node: float
    change: float
    level: float
    frontier_node: float


@final
@dataclass(frozen=True, kw_only=True)
class Learnt:
    """The knowledge of a :class:`Controller` and its :class:`AcceptanceModel`; another controller can start from it.

    Attributes:
        costs: seconds of each term.
        speed: tokens per second and row.
        gains: by depth, the tokens of a level per unit of probability above it.
        reach: by depth, the probability above the next level per unit of probability above this one.
        calibration: accepted over expected tokens.
        acceptance: the acceptance model's weights.
    """

    costs: Costs
    speed: float
    gains: tuple[float, ...]
    reach: tuple[float, ...]
    calibration: float
    acceptance: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Learnt:
        """The inverse of :meth:`to_json`.

        Raises:
            ConfigError: a field is missing, unknown or not a finite number, or a number of seconds is negative.
        """
        _check_names(data, cls)
        costs = data["costs"]
        _check_names(costs, Costs)
        return cls(
            costs=Costs(**{name: _number(f"costs.{name}", value, minimum=0.0) for name, value in costs.items()}),
            speed=_number("speed", data["speed"], minimum=0.0),
            gains=_numbers("gains", data["gains"], minimum=0.0),
            reach=_numbers("reach", data["reach"], minimum=0.0),
            calibration=_number("calibration", data["calibration"], minimum=0.0),
            acceptance=_numbers("acceptance", data["acceptance"]),
        )


def _check_names(data: object, of: type[Costs] | type[Learnt]) -> None:
    wanted = {one.name for one in fields(of)}
    if not isinstance(data, Mapping) or set(data) != wanted:
        came = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise ConfigError(f"{of.__name__} was read from {came}, but has the fields {sorted(wanted)}: use to_json")


def _number(name: str, value: object, minimum: float = -math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < minimum:
        raise ConfigError(f"{name} is {value!r}, but must be a finite number from {minimum} on: write it with to_json")
    return float(value)


def _numbers(name: str, values: object, minimum: float = -math.inf) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        raise ConfigError(f"{name} is {values!r}, but must be a list of numbers: write it with to_json")
    return tuple(_number(f"{name}[{i}]", value, minimum) for i, value in enumerate(values))
