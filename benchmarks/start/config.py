"""Settings of ``python -m benchmarks start``; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from benchmarks.config import Models
from benchmarks.lists import at_least, chosen
from draftwood.core.checks import setting

SYSTEMS: Final = ("transformers", "torch", "native")
PEERS: Final = ("genai", "llama.cpp")


@final
@dataclass(frozen=True, kw_only=True)
class StartConfig(Models):
    """What is started, how often, and where the result goes.

    Raises:
        ConfigError: a value out of range, an unknown system.
    """

    systems: str = setting(
        ",".join(SYSTEMS),
        "what is started, comma-separated: transformers, genai and llama.cpp have the target alone, torch and "
        "native run the pair here",
    )
    prompt_words: int | None = setting(None, "words of the prompt, built-in sentences in turn; by default, one sentence")
    max_new_tokens: int = setting(32, "tokens that are written after the start")
    repeats: int = setting(3, "starts of every system")
    seed: int = setting(0, "seed of the order of the systems")
    output: Path = setting(Path("draftwood-bench"), "folder for start.json and start.md")

    def __post_init__(self) -> None:
        at_least(self, 1, "max_new_tokens", "repeats", "prompt_words")
        self.system_names()

    def system_names(self) -> tuple[str, ...]:
        """The systems that were chosen."""
        return chosen("systems", self.systems, SYSTEMS + PEERS)
