"""Type checks for settings that come from people: a sentence instead of a traceback from deep inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwood.errors import ConfigError


def whole(name: str, value: Any) -> int:
    """An integer (numpy's too).

    Raises:
        ConfigError: anything else.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise ConfigError(f"{name} is {value!r}: give a whole number") from None


def number(name: str, value: Any) -> float:
    """A finite number.

    Raises:
        ConfigError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise ConfigError(f"{name} is {value!r}: give a finite number")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False, and nothing that merely counts as one of them.

    Raises:
        ConfigError: anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}: give True or False")
    return value


def several(name: str, value: Any, kind: type, wanted: str) -> Sequence[Any]:
    """A list or tuple of one kind.

    Raises:
        ConfigError: anything else, a bare text among it.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(v, kind) and not isinstance(v, bool) for v in value):
        raise ConfigError(f"{name} is {value!r}: give a list or tuple of {wanted}")
    return value
