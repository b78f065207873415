"""The knowledge of an adaptive tree, as a value that can be stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple, final

from draftwood.core.errors import ConfigError
from draftwood.draft.adaptive import constants
from draftwood.draft.ngram_index import MAX_AGREED


@final
@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds, by the terms of :class:`CostModel`.

    Attributes:
        base: a round without a tree.
        tree: what any tree adds to the target's part of a round.
        node: each node of the tree.
        change: another number of nodes than the last tree's.
        back: the first round without a tree after one with a tree, beyond ``base``.
        level: a forward of the draft model for one node.
        frontier_node: each further node of that forward.
    """

    base: float = 0.0
    tree: float = 0.0
    node: float = 0.0
    change: float = 0.0
    back: float = 0.0
    level: float = 0.0
    frontier_node: float = 0.0


class Waits(NamedTuple):
    """Seconds until the next probe of each choice: no tree, a tree of the draft, and a guess alone."""

    plain: float = 0.0
    draft: float = 0.0
    guess: float = 0.0


@final
@dataclass(frozen=True, kw_only=True)
class Learnt:
    """The knowledge of a :class:`Controller`; another controller can start from it.

    Attributes:
        costs: seconds of each term.
        timed: levels of the draft and a tree with them were timed.
        factors: by nodes of a tree, from one on, its seconds over those of the costs.
        gains: by depth, the tokens of a level per unit of probability above it.
        reach: by depth, the probability above the next level per unit of probability above this one.
        calibration: accepted over expected tokens.
        worth: tokens of rounds with a draft over those that plain rounds would have written in the same seconds.
        waits: seconds until the next probes.
    """

    costs: Costs = Costs()
    timed: bool = False
    factors: tuple[float, ...] = ()
    gains: tuple[float, ...] = (1.0,)
    reach: tuple[float, ...] = ()
    calibration: float = 1.0
    worth: float = 1.1
    waits: Waits = field(default_factory=Waits)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: object) -> Learnt:
        """The inverse of :meth:`to_json`.

        Raises:
            ConfigError: a field is missing, unknown or of another type, or a number is not finite, or seconds are negative.
        """
        found = _fields(data, cls)
        costs, waits = _fields(found["costs"], Costs), _numbers("waits", found["waits"], minimum=0.0)
        if len(waits) != len(Waits._fields):
            raise ConfigError(f"waits has {len(waits)} numbers, but must have {len(Waits._fields)}: write it with to_json")
        if not (gains := _numbers("gains", found["gains"], minimum=0.0)):
            raise ConfigError("gains is empty, but must have a number for the first level: write it with to_json")
        return cls(
            costs=Costs(**{name: _number(f"costs.{name}", value, minimum=0.0) for name, value in costs.items()}),
            timed=_flag("timed", found["timed"]),
            factors=_numbers("factors", found["factors"], minimum=0.0),
            gains=gains,
            reach=_numbers("reach", found["reach"], minimum=0.0),
            calibration=_number("calibration", found["calibration"], minimum=0.0),
            worth=_number("worth", found["worth"], minimum=0.0),
            waits=Waits(*waits),
        )


NOTHING: Final = Learnt()
"""The knowledge of a controller that has seen nothing.

Its drafts may lose a tenth of ``calibration_prior`` plain rounds before they are given up.
"""


@final
@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """All that an adaptive drafter has learnt, as a value that can be stored.

    Attributes:
        by_rows: rows of a batch, rounded up to a power of two -> the knowledge of its controller.
        acceptance: the acceptance model's weights.
        hits: by tokens that agree, less 1, prompt lookup's weights of right guesses.
        guesses: the weights of all guesses.
    """

    by_rows: Mapping[int, Learnt]
    acceptance: tuple[float, ...]
    hits: tuple[float, ...]
    guesses: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        by_rows = {str(rows): learnt.to_json() for rows, learnt in self.by_rows.items()}
        lists = {name: list(getattr(self, name)) for name in ("acceptance", "hits", "guesses")}
        return {"by_rows": by_rows, **lists}

    @classmethod
    def from_json(cls, data: object) -> Knowledge:
        """The inverse of :meth:`to_json`.

        Raises:
            ConfigError: as :meth:`Learnt.from_json`, or a list of another length.
        """
        found = _fields(data, cls)
        by_rows = found["by_rows"]
        if not isinstance(by_rows, Mapping) or not all(str(rows).isdecimal() and int(rows) > 0 for rows in by_rows):
            raise ConfigError(f"by_rows is {by_rows!r}, but must have numbers of rows as names: write it with to_json")
        lengths = {"acceptance": len(constants.ACCEPTANCE_START), "hits": MAX_AGREED, "guesses": MAX_AGREED}
        lists = {name: _numbers(name, found[name], -math.inf if name == "acceptance" else 0.0) for name in lengths}
        for name, length in lengths.items():
            if len(lists[name]) != length:
                raise ConfigError(f"{name} has {len(lists[name])} numbers, but must have {length}: write it with to_json")
        return cls(by_rows={int(rows): Learnt.from_json(learnt) for rows, learnt in by_rows.items()}, **lists)


def _fields(data: object, of: type[Any]) -> Mapping[str, Any]:
    """The mapping with exactly the fields of a class."""
    wanted = {one.name for one in fields(of)}
    if not isinstance(data, Mapping) or set(data) != wanted:
        came = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise ConfigError(f"{of.__name__} was read from {came}, but has the fields {sorted(wanted)}: use to_json")
    return data


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}, but must be true or false: write it with to_json")
    return value


def _number(name: str, value: object, minimum: float = -math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < minimum:
        raise ConfigError(f"{name} is {value!r}, but must be a finite number from {minimum} on: write it with to_json")
    return float(value)


def _numbers(name: str, values: object, minimum: float = -math.inf) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        raise ConfigError(f"{name} is {values!r}, but must be a list of numbers: write it with to_json")
    return tuple(_number(f"{name}[{i}]", value, minimum) for i, value in enumerate(values))
