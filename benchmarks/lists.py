"""Numbers and comma-separated options."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from draftwood.core.errors import ConfigError

T = TypeVar("T")


def at_least(config: Any, least: int, *names: str) -> None:
    """Check numbers that were given; raises a ConfigError for the first one that is too small."""
    for name in names:
        if (value := getattr(config, name)) is not None and value < least:
            raise ConfigError(f"{name} is {value}: give {least} or more")


def listed(name: str, text: str, read: Callable[[str], T]) -> tuple[T, ...]:
    """The different entries of a comma-separated option, each read by ``read``.

    Raises:
        ConfigError: there are none.
    """
    found = [read(part) for piece in text.split(",") if (part := piece.strip())]
    if not found:
        raise ConfigError(f"{name} is {text!r}: give a comma-separated list, or leave the option out")
    return tuple(dict.fromkeys(found))


def chosen(name: str, text: str, known: Collection[str]) -> tuple[str, ...]:
    """Entries that all have to be known.

    Raises:
        ConfigError: one that is not.
    """

    def read(part: str) -> str:
        if part not in known:
            raise ConfigError(f"{name} holds {part!r}: choose from {', '.join(known)}")
        return part

    return listed(name, text, read)


def whole_numbers(name: str, text: str, example: str) -> tuple[int, ...]:
    """Entries that all have to be whole numbers from 1 on.

    Raises:
        ConfigError: one that is not.
    """

    def read(part: str) -> int:
        if not part.isdecimal() or int(part) < 1:
            raise ConfigError(f"{name} holds {part!r}: give numbers of 1 or more, for example {example}")
        return int(part)

    return listed(name, text, read)


def numbers(name: str, text: str, example: str) -> tuple[float, ...]:
    """Entries that all have to be numbers from 0 on.

    Raises:
        ConfigError: one that is not.
    """
    try:
        found = listed(name, text, float)
    except ValueError:
        found = (-1.0,)
    if not all(0.0 <= value < 1e6 for value in found):
        raise ConfigError(f"{name} is {text!r}: give numbers from 0, for example {example}")
    return found
