"""Type checks of users' settings: an error message in place of a traceback from deep inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from numbers import Real
from reprlib import Repr
from typing import Any, Final, TypeVar

from draftwood.core.errors import ConfigError
from draftwood.core.unknown import UnknownArgumentError

T = TypeVar("T")
LARGEST: Final = 3.4028234663852886e38
"""The largest number of float32."""
_SMALLEST = 1.1754943508222875e-38  # the smallest normal number of float32; hardware may treat smaller ones as zero
_shorten = Repr()
_shorten.maxstring = _shorten.maxother = 60


def setting(default: Any, text: str) -> Any:
    """A field of a dataclass of settings, with the help of its command-line option."""
    return field(default=default, metadata={"help": text})


def short_repr(value: object) -> str:
    """A value as Python source, shortened to about a line."""
    return _shorten.repr(value)


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """The value as an integer, at least ``least``, and at most ``most``; NumPy's integers are accepted too.

    Raises:
        ConfigError: anything else.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        found = int(value.__index__())
    except (AttributeError, TypeError):
        raise ConfigError(f"{name} is {short_repr(value)}: give a whole number") from None
    if (least is not None and found < least) or (most is not None and found > most):
        wanted = f"{least} or more" if most is None else f"a whole number from {least} to {most}"
        raise ConfigError(f"{name} is {found}: give {wanted}")
    return found


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text. It cannot hold half of a surrogate pair, which also stands for bytes of another
    encoding.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def number(name: str, value: Any) -> float:
    """The value as a float that is finite in float32.

    Raises:
        ConfigError: anything else.
    """
    try:
        found = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        found = math.inf
    if not abs(found) < math.inf:
        raise ConfigError(f"{name} is {short_repr(value)}: give a finite number")
    if abs(found) > LARGEST:
        raise ConfigError(
            f"{name} is {short_repr(value)}, which 32-bit floating point cannot hold: give at most 3.4e+38 or so"
        )
    return found


def factor(name: str, value: Any) -> float:
    """The value as a float that scales or bounds others: finite in float32, and zero there only if it is zero.

    Raises:
        ConfigError: anything else.
    """
    found = number(name, value)
    if 0 < abs(found) < _SMALLEST:
        raise ConfigError(f"{name} is {short_repr(value)}, which 32-bit floating point cannot hold: give one farther from 0")
    return found


def flag(name: str, value: Any) -> bool:
    """The value, which must be True or False; 0 and 1 are refused.

    Raises:
        ConfigError: anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {short_repr(value)}: give True or False")
    return value


def choice(name: str, value: Any, known: Sequence[Any]) -> None:
    """Check that the value is one of ``known``.

    Raises:
        ConfigError: anything else.
    """
    if value not in known:
        raise ConfigError(f"{name} is {short_repr(value)}: choose one of {', '.join(map(str, known))}")


def several(name: str, value: Any, kind: type, wanted: str) -> Sequence[Any]:
    """The value as a list or tuple of one type.

    Raises:
        ConfigError: anything else, including a bare string.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(v, kind) and not isinstance(v, bool) for v in value):
        raise ConfigError(f"{name} is {short_repr(value)}: give a list or tuple of {wanted}")
    return value


def settings(name: str, value: Any, kind: type[T]) -> T:
    """The value as a dataclass of settings, given as such or as a mapping of its fields.

    Raises:
        ConfigError: another type, or what the dataclass itself refuses: an unknown field, or values.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {short_repr(value)}: give a {kind.__name__}, or a mapping of its settings")
    try:
        return kind(**{str(key): one for key, one in value.items()})
    except UnknownArgumentError as error:
        raise ConfigError(f"{name}: {error}") from None
