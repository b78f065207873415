"""Settings of the ``serve-`` benchmarks; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from benchmarks.config import DTypeName
from benchmarks.lists import chosen, listed, whole_numbers
from draftwood.core.errors import ConfigError
from draftwood.core.methods import MethodName
from draftwood.core.settings import BackendName

SYSTEMS: Final = ("off", "automatic", "fixed", "transformers", "transformers-batched")


@final
@dataclass(frozen=True, kw_only=True)
class Served:
    """The server that is measured, and where the results go."""

    target: str | None = field(
        default=None, metadata={"help": "target model, a folder or a hub name; the bundled pair without it"}
    )
    draft: str | None = field(default=None, metadata={"help": "draft model, a folder or a hub name"})
    dtype: DTypeName = field(default="auto", metadata={"help": "number format of weights and arithmetic"})
    backend: BackendName = field(default="auto", metadata={"help": "what runs the models of the server"})
    method: MethodName = field(default="auto", metadata={"help": "drafting method of the server"})
    shape: str | None = field(
        default=None, metadata={"help": "shape of the method's tree; without it a method that measures may draft nothing"}
    )
    url: str | None = field(
        default=None, metadata={"help": "a running server such as http://127.0.0.1:8000; without it one is started"}
    )
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for the JSON document and the report"})
    seed: int = field(default=0, metadata={"help": "seed of the requests and of their order"})


def at_least(config: Any, least: int, *names: str) -> None:
    """Check whole numbers; raises ConfigError for the first one that is too small."""
    for name in names:
        if (value := getattr(config, name)) < least:
            raise ConfigError(f"{name} is {value}: give {least} or more")


def numbers(name: str, text: str, example: str, *, positive: bool = False) -> tuple[float, ...]:
    """Comma-separated numbers from 0 on, or above 0.

    Raises:
        ConfigError: something else.
    """
    try:
        found = listed(name, text, float)
    except ValueError:
        found = (-1.0,)
    if not all((value > 0.0 if positive else value >= 0.0) and value < 1e6 for value in found):
        raise ConfigError(f"{name} is {text!r}: give numbers {'above' if positive else 'from'} 0, for example {example}")
    return found


@final
@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """What ``serve-load`` sends.

    Raises:
        ConfigError: a value out of range, an unknown system.
    """

    systems: str = field(
        default="off,automatic,fixed,transformers",
        metadata={
            "help": f"comma-separated, of {', '.join(SYSTEMS)}; off, automatic and fixed are ways of drafting, "
            "transformers is 'transformers serve', batched with continuous batching"
        },
    )
    fixed: MethodName = field(default="chain", metadata={"help": "method of the system 'fixed', in its default shape"})
    concurrency: str = field(default="1,2,4,8,16", metadata={"help": "clients with one request each at any time"})
    rates: str = field(default="1,4", metadata={"help": "requests per second that arrive at random, comma-separated"})
    requests: int = field(default=32, metadata={"help": "requests of every system at every level and repeat"})
    repeats: int = field(default=3, metadata={"help": "times that every system gets the requests of every level"})
    max_new_tokens: int = field(default=64, metadata={"help": "tokens of the longest answers; others have a part of them"})
    temperatures: str = field(default="0,0.7,1", metadata={"help": "of the requests, in turn, comma-separated"})

    def __post_init__(self) -> None:
        at_least(self, 1, "requests", "repeats")
        at_least(self, 8, "max_new_tokens")
        self.names()
        self.levels()
        self.arrivals()
        self.heat()

    def names(self) -> tuple[str, ...]:
        """The systems."""
        return chosen("systems", self.systems, SYSTEMS)

    def levels(self) -> tuple[int, ...]:
        """Numbers of clients."""
        return whole_numbers("concurrency", self.concurrency, minimum=1, example="1,8")

    def arrivals(self) -> tuple[float, ...]:
        """Requests per second; none if the option is empty."""
        return numbers("rates", self.rates, "0.5,2", positive=True) if self.rates.strip() else ()

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

    requests: int = field(default=2000, metadata={"help": "short requests, a part of which the client leaves"})
    clients: int = field(default=12, metadata={"help": "requests at a time"})
    growth: float = field(
        default=0.02, metadata={"help": "part by which memory may grow between the end of the first tenth and of the last"}
    )

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

    requests: int = field(default=10_000, metadata={"help": "mutated bodies"})
    clients: int = field(default=8, metadata={"help": "requests at a time"})
    seconds: float = field(default=30.0, metadata={"help": "an answer that takes longer is a hang"})
    cases: int = field(default=100, metadata={"help": "most cases of schemathesis per route and phase; 0 leaves it out"})

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

    tokens: int = field(default=1500, metadata={"help": "tokens of the first turn of a chat, at least"})
    repeats: int = field(default=9, metadata={"help": "chats that are measured, after one that warms up"})
    max_new_tokens: int = field(default=40, metadata={"help": "tokens of an answer"})
    most: float = field(default=1.3, metadata={"help": "the most that a second turn may take, by a new chat"})

    def __post_init__(self) -> None:
        at_least(self, 64, "tokens")
        at_least(self, 1, "repeats", "max_new_tokens", "most")
