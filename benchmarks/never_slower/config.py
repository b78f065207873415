"""Settings of ``python -m benchmarks never-slower``; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from benchmarks.config import BackendName, DTypeName, backends
from benchmarks.lists import chosen, listed, whole_numbers
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Backend
from draftwood.grammar.grammar import Grammar

DRAFTS: Final = ("own", "none", "random")
STATES: Final = ("new", "known")


@final
@dataclass(frozen=True, kw_only=True)
class NeverSlowerConfig:
    """What is compared, and how often.

    Raises:
        ConfigError: a value out of range, an unknown draft or state.
    """

    target: str | None = field(
        default=None, metadata={"help": "target model, a folder or a hub name; the bundled pair without it"}
    )
    draft: str | None = field(default=None, metadata={"help": "draft model, a folder or a hub name"})
    dtype: DTypeName = field(default="auto", metadata={"help": "number format of weights and arithmetic"})
    device: str = field(default="auto", metadata={"help": "cpu, cuda or cuda:1; auto takes CUDA if there is one"})
    backend: BackendName = field(default="native", metadata={"help": "native, torch or both of them"})
    drafts: str = field(
        default=",".join(DRAFTS),
        metadata={"help": "comma-separated; own: the pair's, none: without, random: one layer with random weights"},
    )
    states: str = field(
        default=",".join(STATES),
        metadata={"help": "comma-separated; new: nothing is known of the machine, known: an earlier process has learnt"},
    )
    batch: str = field(default="1,4,8", metadata={"help": "texts that are continued together, comma-separated"})
    temperatures: str = field(default="0,1", metadata={"help": "comma-separated"})
    max_new_tokens: int = field(default=48, metadata={"help": "new tokens of every text"})
    json_schema: Path | None = field(
        default=None, metadata={"help": "all texts are JSON that follows the schema in this file, and end with it"}
    )
    repeats: int = field(default=3, metadata={"help": "times that both write every text"})
    seed: int = field(default=0, metadata={"help": "seed of the texts and of the order"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for never-slower.json and .md"})

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "repeats"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}: give 1 or more")
        self.draft_names()
        self.state_names()
        self.batch_sizes()
        self.temperature_values()
        self.grammar()

    def backends(self) -> tuple[Backend, ...]:
        """The backends, in order."""
        return backends(self.backend)

    def draft_names(self) -> tuple[str, ...]:
        """The drafts that were chosen."""
        return chosen("drafts", self.drafts, DRAFTS)

    def state_names(self) -> tuple[str, ...]:
        """The states that were chosen."""
        return chosen("states", self.states, STATES)

    def batch_sizes(self) -> tuple[int, ...]:
        """Texts of a batch."""
        return whole_numbers("batch", self.batch, minimum=1, example="1,4,8")

    def grammar(self) -> Grammar | None:
        """What all texts follow, if anything."""
        if self.json_schema is None:
            return None
        try:
            text = self.json_schema.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"json_schema is {str(self.json_schema)!r} ({error}): give a file with a JSON schema"
            ) from None
        return Grammar.json_schema(text)

    def temperature_values(self) -> tuple[float, ...]:
        """Temperatures, 0 or more."""
        try:
            found = listed("temperatures", self.temperatures, float)
        except ValueError:
            found = (-1.0,)
        if not all(0.0 <= value < 100.0 for value in found):
            raise ConfigError(f"temperatures is {self.temperatures!r}: give numbers from 0 on, for example 0,1")
        return found
