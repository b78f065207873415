"""Settings of ``python -m benchmarks start``; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from benchmarks.config import DTypeName
from benchmarks.lists import chosen
from draftwood.core.errors import ConfigError

SYSTEMS: Final = ("transformers", "torch", "native")
PEERS: Final = ("genai", "llama.cpp")


@final
@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """What is started, how often, and where the result goes.

    Raises:
        ConfigError: a value out of range, an unknown system.
    """

    target: str | None = field(
        default=None, metadata={"help": "target model, a folder or a hub name; the bundled pair without it"}
    )
    draft: str | None = field(default=None, metadata={"help": "draft model, a folder or a hub name"})
    dtype: DTypeName = field(default="auto", metadata={"help": "number format of weights and arithmetic"})
    systems: str = field(
        default=",".join(SYSTEMS),
        metadata={
            "help": "what is started, comma-separated: transformers, genai and llama.cpp have the target alone, torch and "
            "native run the pair here"
        },
    )
    prompt_words: int | None = field(
        default=None, metadata={"help": "words of the prompt, built-in sentences in turn; by default, one sentence"}
    )
    max_new_tokens: int = field(default=32, metadata={"help": "tokens that are written after the start"})
    repeats: int = field(default=3, metadata={"help": "starts of every system"})
    seed: int = field(default=0, metadata={"help": "seed of the order of the systems"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for start.json and start.md"})

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "repeats", "prompt_words"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} is {value}: give 1 or more")
        self.system_names()

    def system_names(self) -> tuple[str, ...]:
        """The systems that were chosen."""
        return chosen("systems", self.systems, SYSTEMS + PEERS)
