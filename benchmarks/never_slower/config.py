"""Settings of ``python -m benchmarks never-slower``; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from benchmarks.config import BackendName, Models, backends
from benchmarks.lists import at_least, chosen, numbers, whole_numbers
from draftwood.core.checks import setting
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Backend
from draftwood.grammar.grammar import Grammar

DRAFTS: Final = ("own", "none", "random")
STATES: Final = ("new", "known")


@final
@dataclass(frozen=True, kw_only=True)
class NeverSlowerConfig(Models):
    """What is compared, and how often.

    Raises:
        ConfigError: a value out of range, an unknown draft or state.
    """

    device: str = setting("auto", "cpu, cuda or cuda:1; auto takes CUDA if there is one")
    backend: BackendName = setting("native", "native, torch or both of them")
    drafts: str = setting(
        ",".join(DRAFTS), "comma-separated; own: the pair's, none: without, random: one layer with random weights"
    )
    states: str = setting(
        ",".join(STATES), "comma-separated; new: nothing is known of the machine, known: an earlier process has learnt"
    )
    batch: str = setting("1,4,8", "texts that are continued together, comma-separated")
    temperatures: str = setting("0,1", "comma-separated")
    max_new_tokens: int = setting(48, "new tokens of every text")
    json_schema: Path | None = setting(None, "all texts are JSON that follows the schema in this file, and end with it")
    repeats: int = setting(3, "times that both write every text")
    seed: int = setting(0, "seed of the texts and of the order")
    output: Path = setting(Path("draftwood-bench"), "folder for never-slower.json and .md")

    def __post_init__(self) -> None:
        at_least(self, 1, "max_new_tokens", "repeats")
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
        return whole_numbers("batch", self.batch, "1,4,8")

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
        return numbers("temperatures", self.temperatures, "0,1")
