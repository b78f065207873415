"""The knowledge of an adaptive tree, as a value that can be stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, TypeVar, cast, final

from draftwood.core.errors import ConfigError
from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.cost import KNOTS, Costs
from draftwood.draft.adaptive.lookup import KINDS

T = TypeVar("T")


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


def value_of(kind: type[T], data: object) -> T:
    """The :class:`Knowledge`, or a value in it, whose ``asdict`` was written as JSON.

    Raises:
        ConfigError: a field is missing, unknown or of another type, a list has another length, or a number is not finite or
            too small.
    """
    wanted = {one.name for one in fields(cast(Any, kind))}
    if not isinstance(data, Mapping) or set(data) != wanted:
        came = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise ConfigError(f"{kind.__name__} was read from {came}, but has the fields {sorted(wanted)}")
    return kind(**{name: _READERS[name](name, value) for name, value in data.items()})


def _number(name: str, value: object, minimum: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < minimum:
        raise ConfigError(f"{name} is {value!r}, but must be a finite number from {minimum} on")
    return float(value)


def _numbers(
    name: str, values: object, count: int | None = None, minimum: float = 0.0, min_count: int = 0
) -> tuple[float, ...]:
    if not isinstance(values, list | tuple) or count not in (None, len(values)) or len(values) < min_count:
        raise ConfigError(f"{name} is {values!r}, but must be a list of {count or 'some'} numbers")
    return tuple(_number(f"{name}[{i}]", value, minimum) for i, value in enumerate(values))


def _by_rows(name: str, values: object) -> dict[int, Learnt]:
    if not isinstance(values, Mapping) or not all(str(rows).isdecimal() and int(rows) > 0 for rows in values):
        raise ConfigError(f"{name} is {values!r}, but must have numbers of rows as names")
    return {int(rows): value_of(Learnt, learnt) for rows, learnt in values.items()}


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    **dict.fromkeys(("worth", "base", "back", "opening"), _number),
    **dict.fromkeys(("trees", "levels"), partial(_numbers, count=len(KNOTS), minimum=1e-6)),
    **dict.fromkeys(("hits", "guesses"), partial(_numbers, count=KINDS)),
    "acceptance": partial(_numbers, count=len(constants.ACCEPTANCE_START), minimum=-math.inf),
    "gains": partial(_numbers, min_count=1),
    "reach": _numbers,
    "waits": partial(_numbers, count=3),
    "timed": lambda _, value: value is True,
    "costs": lambda _, value: value_of(Costs, value),
    "by_rows": _by_rows,
}
"""By the field's name, what reads it."""
