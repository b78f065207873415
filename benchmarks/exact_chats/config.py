"""Settings of ``python -m benchmarks exact-chats``; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from benchmarks.config import DTypeName
from benchmarks.lists import chosen
from draftwood.core.errors import ConfigError
from draftwood.core.methods import MethodName
from draftwood.core.settings import Backend

PARTS: Final = ("greedy", "sampled")
LEAST_TOKENS: Final = 640  # of a goodness-of-fit test; fewer allow no conclusion


@final
@dataclass(frozen=True, kw_only=True)
class ExactChatsConfig:
    """Which chats are written, and how they are tested.

    Raises:
        ConfigError: a value out of range.
    """

    prompts: Path = field(metadata={"help": "JSON lines with 'turns' (as Spec-Bench), 'question' or 'prompt'"})
    target: str | None = field(default=None, metadata={"help": "target model, a folder, a hub name or a short name"})
    draft: str | None = field(default=None, metadata={"help": "draft model; by default the one of the short name"})
    dtype: DTypeName = field(default="float32", metadata={"help": "number format of weights and arithmetic, on both sides"})
    device: str = field(default="auto", metadata={"help": "cpu, cuda or cuda:1; auto takes CUDA if there is one"})
    backend: Backend = field(default="native", metadata={"help": "what runs our side; transformers' side is PyTorch"})
    method: MethodName = field(default="auto", metadata={"help": "drafting method"})
    parts: str = field(default=",".join(PARTS), metadata={"help": "comma-separated: greedy and sampled, or one of them"})
    chats: int = field(default=60, metadata={"help": "chats, the sources in turn"})
    max_new_tokens: int = field(default=512, metadata={"help": "the most tokens of an answer"})
    generated: int = field(default=4, metadata={"help": "chats whose last answer generate writes too; 0 for none"})
    tokens: int = field(default=20_000, metadata={"help": "tokens of the sampled part, at temperature 1"})
    control_tokens: int = field(default=2_000, metadata={"help": "tokens of the control at another temperature"})
    control: float = field(default=0.9, metadata={"help": "temperature of the control, tested as if it were 1"})
    seed: int = field(default=0, metadata={"help": "seed of the sampled texts"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for exact-chats.json and .md"})

    def __post_init__(self) -> None:
        least_tokens = {"tokens": LEAST_TOKENS, "control_tokens": LEAST_TOKENS}
        for name, least in {"chats": 1, "max_new_tokens": 1, "generated": 0, **least_tokens}.items():
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} is {value}: give {least} or more")
        if not 0 < self.control < 100 or self.control == 1:
            raise ConfigError(f"control is {self.control}: give a number above 0 and below 100, but not 1")
        self.part_names()

    def part_names(self) -> tuple[str, ...]:
        """The parts that were chosen."""
        return chosen("parts", self.parts, PARTS)
