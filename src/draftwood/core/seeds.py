"""Seeds of texts: drawn by default, and counted up from text to text."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from draftwood.core.checks import integer
from draftwood.core.errors import ConfigError

_BITS = 32  # short enough to be typed again


def seed_or_random(seed: int | None) -> int:
    """The seed, or a new one.

    Raises:
        ConfigError: a seed that is not an integer.
    """
    return secrets.randbits(_BITS) if seed is None else integer("seed", seed)


def seeds_for(count: int, seed: int | Sequence[int] | None, what: str) -> list[int]:
    """One seed for each of several texts; all are drawn if none is given.

    Args:
        what: the name of the texts in an error.

    Raises:
        ConfigError: a wrong number of seeds, or a seed that is not an integer.
    """
    if seed is None:
        return [seed_or_random(None) for _ in range(count)]
    if not isinstance(seed, list | tuple):
        first = integer("seed", seed)
        return list(range(first, first + count))
    if len(seed) != count:
        raise ConfigError(f"{len(seed)} seeds came for {count} {what}: give one each, or a single number")
    return [integer("seed", one) for one in seed]
