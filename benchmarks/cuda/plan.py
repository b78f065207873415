"""The amount and the time of measurements on an accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final, final


class TimeIsUp(Exception):  # noqa: N818  # nothing went wrong
    """A part has used its share of the time; what it measured by then counts."""


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The amount of measurements.

    Attributes:
        device: ``cuda`` or ``cpu``.
        seconds: for everything.
        parts: names of the parts, in order.
        shapes: the target's parameters by name; None is the bundled target as it is.
        batches: texts that are continued together, smallest first; the last one is the number of prompts.
        max_new_tokens: of every text.
        repeats: at most, where the time lasts.
        nodes: tokens of the forwards that are timed.
        methods: whose texts are tested; empty for one setting of every method.
        out: folder of the results.
    """

    device: str
    seconds: float
    parts: tuple[str, ...]
    shapes: dict[str, int | None]
    batches: tuple[int, ...]
    max_new_tokens: int
    repeats: int
    nodes: tuple[int, ...]
    methods: tuple[str, ...]
    out: Path


LARGE: Final = {
    "shapes": {"shipped": None, "1B": 1_000_000_000, "8B": 8_000_000_000},
    "batches": (1, 8),
    "max_new_tokens": 128,
    "repeats": 20,
    "nodes": (1, 2, 4, 8, 16, 32, 64),
    "methods": (),
}
SMALL: Final = {
    "shapes": {"13M": 13_000_000},
    "batches": (1, 2),
    "max_new_tokens": 3,
    "repeats": 1,
    "nodes": (1, 4),
    "methods": ("generate", "ar", "rsd-s+traversal", "shared-noise"),
}


@final
class Deadline:
    """Ends a part when its time is up.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = perf_counter() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._end - perf_counter())

    def share(self, parts: int) -> Deadline:
        """The deadline of the first of this many remaining parts."""
        return Deadline(self.left / max(1, parts))

    def check(self) -> None:
        """Raise :class:`TimeIsUp` after the end."""
        if not self.left:
            raise TimeIsUp
