"""Settings of ``python -m benchmarks translate``; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from benchmarks.lists import chosen
from draftwood.core.errors import ConfigError

METHODS: Final = ("ar", "block", "tree")
PEERS: Final = ("generate", "ctranslate2")
NONE: Final = "none"
LIMIT: Final = 200
EXACT_SIZES: Final = (1, 16)
"""Batch sizes of a comparison of texts: one sentence at a time, and rows of different lengths side by side."""
TOLERANCES: Final = ("1,0", "3,1")
DRAFTED: Final = ("block", "tree")
"""Methods that are measured only with a drafter."""


@final
@dataclass(frozen=True, kw_only=True)
class TranslateConfig:
    """What is measured, with which models, on which sentences, and where the result goes.

    Raises:
        ConfigError: a value out of range, an unknown system, a method whose drafter was not given.
    """

    data: Path = field(metadata={"help": "folder with NAME.val.LANGUAGE[.xz] of two languages, line by line"})
    target: str | None = field(
        default=None, metadata={"help": "translation model, a folder or a hub name; the bundled pair without it"}
    )
    draft: str | None = field(
        default=None, metadata={"help": "drafter that fills whole blocks ('draftwood train spec-drafter'), a folder"}
    )
    source_language: str = field(default="de", metadata={"help": "language to translate from, as the files call it"})
    target_language: str = field(default="en", metadata={"help": "language to translate to, as the files call it"})
    limit: int | None = field(
        default=None,
        metadata={
            "help": f"sentences, evenly spaced over the files (often sorted by length); by default {LIMIT}, all with --exact"
        },
    )
    batch_size: tuple[int, ...] = field(
        default=(1, 8), metadata={"help": "sentences translated at once; may be given several times"}
    )
    methods: str | None = field(
        default=None, metadata={"help": f"only these methods of Draftwood, comma-separated: {', '.join(METHODS)}; or {NONE}"}
    )
    peers: str | None = field(
        default=None, metadata={"help": f"only these other systems, comma-separated: {', '.join(PEERS)}; or {NONE}"}
    )
    tolerance: tuple[str, ...] = field(
        default=(),
        metadata={"help": f"beta,tau of method block; may be given several times; by default {' and '.join(TOLERANCES)}"},
    )
    k: tuple[int, ...] = field(
        default=(), metadata={"help": "tokens of a block; may be given several times; without it as 'draftwood translate'"}
    )
    nodes: tuple[int, ...] = field(
        default=(),
        metadata={"help": "node budget of method tree; may be given several times; without it the tree grows as it pays"},
    )
    max_new_tokens: int | None = field(
        default=None, metadata={"help": "longest translation in tokens; by default what the target's own settings allow"}
    )
    exact: bool = field(
        default=False,
        metadata={"help": "no speed: compare all that should write the target's greedy translations"},
    )
    repeats: int = field(default=3, metadata={"help": "repeats of every system on every sentence; 1 with --exact"})
    seed: int = field(default=0, metadata={"help": "seed of the order of the systems"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for translate.json and translate.md"})

    def __post_init__(self) -> None:
        for name in ("limit", "max_new_tokens", "repeats"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: give 1 or more")
        for name, values in (("batch_size", self.batch_size), ("k", self.k), ("nodes", self.nodes)):
            if any(value < 1 for value in values) or len(set(values)) < len(values):
                raise ConfigError(f"{name} is {', '.join(map(str, values))}: give different numbers of 1 or more")
        if not self.batch_size:
            raise ConfigError("batch_size is empty: give at least one number")
        for name, method in (("k", "block"), ("tolerance", "block"), ("nodes", "tree")):
            if (given := getattr(self, name)) and method not in self.method_names():
                raise ConfigError(
                    f"{name} is {' '.join(map(str, given))}, but method {method!r} is not measured: "
                    f"choose it, or leave {name} out"
                )
        self.tolerances()
        if not (*self.method_names(), *self.peer_names()):
            raise ConfigError("methods and peers are both 'none': name a system to measure")

    def method_names(self) -> tuple[str, ...]:
        """Draftwood's methods to be measured; without a choice, all that the given models allow."""
        if self.methods is None:
            return tuple(name for name in METHODS if name not in self.left_out())
        names = _chosen_or_none("methods", self.methods, METHODS)
        for name in names:
            if name in self.left_out():
                raise ConfigError(f"method {name!r} needs a drafter: give --draft")
        return names

    def peer_names(self) -> tuple[str, ...]:
        """The other systems to be measured."""
        return PEERS if self.peers is None else _chosen_or_none("peers", self.peers, PEERS)

    def sentences(self, there: int) -> int:
        """How many of so many sentences are taken."""
        if self.limit is None:
            return there if self.exact else min(there, LIMIT)
        return min(there, self.limit)

    def left_out(self) -> tuple[str, ...]:
        """Methods whose drafter was not given; the bundled pair has one."""
        return DRAFTED if self.draft is None and self.target is not None else ()

    def tolerances(self) -> tuple[tuple[int, float], ...]:
        """Pairs of beta and tau."""
        return tuple(dict.fromkeys(_beta_tau(text) for text in self.tolerance or TOLERANCES))

    def times(self) -> int:
        """Repeats."""
        return 1 if self.exact else self.repeats

    def sizes(self) -> tuple[int, ...]:
        """Batch sizes."""
        return EXACT_SIZES if self.exact else self.batch_size

    @property
    def name(self) -> str:
        """The name of the document and of the report."""
        return "translate-exact" if self.exact else "translate"


def _chosen_or_none(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    return () if text.strip() == NONE else chosen(option, text, known)


def _beta_tau(text: str) -> tuple[int, float]:
    beta, _, tau = text.partition(",")
    try:
        found = int(beta), float(tau)
    except ValueError:
        found = 0, 0.0
    if found[0] < 1 or not 0 <= found[1] < float("inf"):
        raise ConfigError(f"tolerance is {text!r}: give beta,tau such as 3,1.0 (a whole number from 1 on, nats from 0 on)")
    return found
