"""The knowledge of an adaptive tree, as a value that can be stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, final

from draftwood.core.errors import ConfigError
from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.cost import KNOTS, Costs
from draftwood.draft.adaptive.lookup import KINDS


@final
@dataclass(frozen=True, kw_only=True)
class Learnt:
    """The knowledge of a :class:`Controller`; another controller can start from it.

    Attributes:
        costs: what rounds took.
        timed: levels of the draft and a tree with them were timed.
        gains: by depth, the tokens of a level per unit of probability above it.
        reach: by depth, the probability above the next level per unit of probability above this one.
        worth: tokens of rounds with a draft over those that plain rounds would have written in the same seconds.
        waits: seconds until the next probe of each choice: no tree, a tree of the draft, and a guess alone.
    """

    costs: Costs = field(default_factory=Costs)
    timed: bool = False
    gains: tuple[float, ...] = (1.0,)
    reach: tuple[float, ...] = ()
    worth: float = 1.1
    waits: tuple[float, ...] = (0.0, 0.0, 0.0)

    @classmethod
    def from_json(cls, data: object) -> Learnt:
        """The value whose ``asdict`` was written as JSON.

        Raises:
            ConfigError: a field is missing, unknown or of another type, or a number is not finite or negative.
        """
        found = _fields(data, cls)
        lists = {name: _numbers(name, found[name]) for name in ("gains", "reach")}
        if not lists["gains"]:
            raise ConfigError("gains is empty, but must have a number for the first level")
        return cls(
            costs=_costs(found["costs"]),
            timed=found["timed"] is True,
            worth=_number("worth", found["worth"]),
            waits=_numbers("waits", found["waits"], count=3),
            **lists,
        )


NOTHING: Final = Learnt()
"""The knowledge of a controller that has seen nothing.

Its drafts may lose a tenth of ``worth_prior`` plain rounds before they are given up.
"""


@final
@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """All that an adaptive drafter has learnt, as a value that can be stored.

    Attributes:
        by_rows: rows of a batch, rounded up to a power of two -> the knowledge of its controller.
        acceptance: the acceptance model's weights.
        hits: prompt lookup's weights of right guesses, by their kind.
        guesses: the weights of all guesses.
    """

    by_rows: Mapping[int, Learnt]
    acceptance: tuple[float, ...]
    hits: tuple[float, ...]
    guesses: tuple[float, ...]

    @classmethod
    def from_json(cls, data: object) -> Knowledge:
        """The value whose ``asdict`` was written as JSON.

        Raises:
            ConfigError: as :meth:`Learnt.from_json`, or a list of another length.
        """
        found = _fields(data, cls)
        by_rows = found["by_rows"]
        if not isinstance(by_rows, Mapping) or not all(str(rows).isdecimal() and int(rows) > 0 for rows in by_rows):
            raise ConfigError(f"by_rows is {by_rows!r}, but must have numbers of rows as names")
        return cls(
            by_rows={int(rows): Learnt.from_json(learnt) for rows, learnt in by_rows.items()},
            acceptance=_numbers("acceptance", found["acceptance"], len(constants.ACCEPTANCE_START), minimum=-math.inf),
            hits=_numbers("hits", found["hits"], KINDS),
            guesses=_numbers("guesses", found["guesses"], KINDS),
        )


_LEAST: Final = 1e-6  # plain rounds


def _costs(data: object) -> Costs:
    found = _fields(data, Costs)
    trees, levels = (_numbers(name, found[name], len(KNOTS), minimum=_LEAST) for name in ("trees", "levels"))
    base, back, opening = (_number(name, found[name]) for name in ("base", "back", "opening"))
    return Costs(base=base, trees=trees, back=back, opening=opening, levels=levels)


def _fields(data: object, of: type[Any]) -> Mapping[str, Any]:
    """The mapping with exactly the fields of a class."""
    wanted = {one.name for one in fields(of)}
    if not isinstance(data, Mapping) or set(data) != wanted:
        came = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise ConfigError(f"{of.__name__} was read from {came}, but has the fields {sorted(wanted)}")
    return data


def _number(name: str, value: object, minimum: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < minimum:
        raise ConfigError(f"{name} is {value!r}, but must be a finite number from {minimum} on")
    return float(value)


def _numbers(name: str, values: object, count: int | None = None, minimum: float = 0.0) -> tuple[float, ...]:
    if not isinstance(values, list | tuple) or count not in (None, len(values)):
        raise ConfigError(f"{name} is {values!r}, but must be a list of {count or 'some'} numbers")
    return tuple(_number(f"{name}[{i}]", value, minimum) for i, value in enumerate(values))
