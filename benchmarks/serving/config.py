"""Settings of the ``serve-`` benchmarks; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from benchmarks.config import Models
from benchmarks.lists import at_least, chosen, numbers, whole_numbers
from draftwood.core.checks import setting
from draftwood.core.methods import MethodName
from draftwood.core.settings import BackendName

SYSTEMS: Final = ("off", "automatic")


@final
@dataclass(frozen=True, kw_only=True)
class Served(Models):
    """The server that is measured, and where the results go."""

    backend: BackendName = setting("auto", "what runs the models of the server")
    method: MethodName = setting("auto", "drafting method of the server")
    shape: str | None = setting(None, "shape of the method's tree; without it a method that measures may draft nothing")
    url: str | None = setting(None, "a running server such as http://127.0.0.1:8000; without it one is started")
    output: Path = setting(Path("draftwood-bench"), "folder for the JSON document and the report")
    seed: int = setting(0, "seed of the requests and of their order")


@final
@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """What ``serve-load`` sends.

    Raises:
        ConfigError: a value out of range, an unknown system.
    """

    systems: str = setting(
        "off,automatic", "comma-separated; off: without drafts, automatic: with those that the server chooses"
    )
    concurrency: str = setting("1,2,4,8,16", "clients with one request each at any time")
    requests: int = setting(32, "requests of every system at every level and repeat")
    repeats: int = setting(3, "times that every system gets the requests of every level")
    max_new_tokens: int = setting(64, "tokens of the longest answers; others have a part of them")
    temperatures: str = setting("0,0.7,1", "of the requests, in turn, comma-separated")

    def __post_init__(self) -> None:
        at_least(self, 1, "requests", "repeats")
        at_least(self, 8, "max_new_tokens")
        self.names()
        self.levels()
        self.heat()

    def names(self) -> tuple[str, ...]:
        """The systems."""
        return chosen("systems", self.systems, SYSTEMS)

    def levels(self) -> tuple[int, ...]:
        """Numbers of clients."""
        return whole_numbers("concurrency", self.concurrency, "1,8")

    def heat(self) -> tuple[float, ...]:
        """Temperatures."""
        return numbers("temperatures", self.temperatures, "0,1")


@final
@dataclass(frozen=True, kw_only=True)
class SoakConfig:
    """What ``serve-soak`` sends.

    Raises:
        ConfigError: a value out of range.
    """

    requests: int = setting(2000, "short requests, a part of which the client leaves")
    clients: int = setting(12, "requests at a time")
    growth: float = setting(0.02, "part by which memory may grow between the end of the first tenth and of the last")

    def __post_init__(self) -> None:
        at_least(self, 10, "requests")
        at_least(self, 1, "clients")
        at_least(self, 0, "growth")


@final
@dataclass(frozen=True, kw_only=True)
class FuzzConfig:
    """What ``serve-fuzz`` sends.

    Raises:
        ConfigError: a value out of range.
    """

    requests: int = setting(10_000, "mutated bodies")
    clients: int = setting(8, "requests at a time")
    seconds: float = setting(30.0, "an answer that takes longer is a hang")
    cases: int = setting(100, "most cases of schemathesis per route and phase; 0 leaves it out")

    def __post_init__(self) -> None:
        at_least(self, 0, "requests", "cases")
        at_least(self, 1, "clients", "seconds")


@final
@dataclass(frozen=True, kw_only=True)
class PrefixConfig:
    """What ``serve-prefix`` sends.

    Raises:
        ConfigError: a value out of range.
    """

    tokens: int = setting(1500, "tokens of the first turn of a chat, at least")
    repeats: int = setting(9, "chats that are measured, after one that warms up")
    max_new_tokens: int = setting(40, "tokens of an answer")
    most: float = setting(1.3, "the most that a second turn may take, by a new chat")

    def __post_init__(self) -> None:
        at_least(self, 64, "tokens")
        at_least(self, 1, "repeats", "max_new_tokens", "most")
