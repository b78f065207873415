"""Settings of ``python -m benchmarks ray``; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from benchmarks.lists import chosen
from benchmarks.serving.config import at_least

PARTS: Final = ("faults", "file", "leaving", "proxy")


@final
@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """The parts of ``ray`` and their sizes.

    Raises:
        ConfigError: a value out of range, an unknown part.
    """

    parts: str = field(default=",".join(PARTS), metadata={"help": f"comma-separated, of {', '.join(PARTS)}"})
    texts: int = field(
        default=500, metadata={"help": "faults: texts of two replicas; a raylet is removed, a replica killed"}
    )
    prompts: int = field(default=2000, metadata={"help": "file: lines that two writers continue; one is killed"})
    clients: int = field(default=200, metadata={"help": "leaving: clients at once; half of them leave"})
    requests: int = field(default=48, metadata={"help": "proxy: requests at every level and repeat"})
    repeats: int = field(default=3, metadata={"help": "proxy: times that both servers get the requests"})
    max_new_tokens: int = field(default=32, metadata={"help": "tokens of the longest texts; in the file a quarter of them"})
    seconds: float = field(default=120.0, metadata={"help": "an answer that is silent for longer is a hang"})

    def __post_init__(self) -> None:
        at_least(self, 8, "texts", "prompts", "max_new_tokens")
        at_least(self, 1, "clients", "requests", "repeats", "seconds")
        self.chosen()

    def chosen(self) -> tuple[str, ...]:
        """The parts."""
        return chosen("parts", self.parts, PARTS)
