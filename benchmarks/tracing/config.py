"""Settings of ``python -m benchmarks trace``; defaults exist only here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from benchmarks.config import DTypeName
from draftwood.core.errors import ConfigError


@final
@dataclass(frozen=True, kw_only=True)
class TraceConfig:
    """What is traced, how often, and where the result goes.

    Raises:
        ConfigError: a value out of range.
    """

    target: str | None = field(
        default=None, metadata={"help": "target model, a folder or a hub name; the bundled pair without it"}
    )
    draft: str | None = field(default=None, metadata={"help": "draft model, a folder or a hub name"})
    dtype: DTypeName = field(default="float32", metadata={"help": "number format of weights and arithmetic"})
    shape: str = field(default="4x6", metadata={"help": "width x length of the trees; 4x6 has 24 nodes"})
    max_new_tokens: int = field(default=32, metadata={"help": "new tokens of a text"})
    repeats: int = field(default=60, metadata={"help": "texts, each written in every way"})
    seed: int = field(default=0, metadata={"help": "seed of texts and orders"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for trace.json and trace.md"})

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "repeats"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}: give 1 or more")
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", self.shape):
            raise ConfigError(f"shape is {self.shape!r}: give width x length such as 4x6")

    @property
    def device(self) -> str:
        """Of both models: processor time is measured."""
        return "cpu"
