"""What the benchmark of edits takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from benchmarks.config import DTypeName
from draftwood.core.errors import ConfigError


@final
@dataclass(frozen=True, kw_only=True)
class EditsConfig:
    """Which files a target edits; raises a ConfigError for a value out of range."""

    target: str = field(default="smollm2", metadata={"help": "a chat model with a drafter of its own"})
    folder: Path = field(default=Path("src/draftwood"), metadata={"help": "folder with files of Python"})
    files: int = field(default=40, metadata={"help": "files, of 60 to 200 lines"})
    tokens: int = field(default=800, metadata={"help": "the most tokens of a new file"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for edits.json and edits.md"})

    dtype: ClassVar[DTypeName] = "auto"
    device: ClassVar[str] = "cpu"
    draft: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.files < 1 or self.tokens < 1:
            raise ConfigError(f"files is {self.files} and tokens {self.tokens}: give 1 or more of each")
