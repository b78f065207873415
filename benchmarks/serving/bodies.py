"""Requests of mixed lengths and settings, by their number."""

from __future__ import annotations

import random
from typing import Any, Final

from draftwood.tune.prompts import built_in

_LENGTHS: Final = (1, 1, 2, 4)  # openings that a prompt consists of
_ANSWERS: Final = (0.125, 0.25, 0.5, 1.0)  # parts of the longest answer


def prompt(rng: random.Random) -> str:
    """An opening, or several after one another: about 20 to 100 tokens."""
    return " ".join(rng.sample(built_in(12), rng.choice(_LENGTHS)))


def mixed(
    number: int, seed: int, model: str, longest: int, temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
) -> dict[str, Any]:
    """The body of a request; all that it wants depends on its number and the seed."""
    rng = random.Random(f"{seed}/{number}")
    return {
        "model": model,
        "prompt": prompt(rng),
        "max_tokens": max(1, round(longest * rng.choice(_ANSWERS))),
        "temperature": temperatures[number % len(temperatures)],
        "seed": 1_000 * seed + number,
    }
