"""Settings of training runs. Command-line options and records are derived from them; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from draftwood.core.checks import integer, setting
from draftwood.core.errors import ConfigError
from draftwood.sampling.settings import Sampling

LEAST_TOKENS: Final = 2_000
"""Fewer tokens of texts show nothing about a drafter."""


@dataclass(frozen=True, kw_only=True)
class ChatsConfig:
    """Settings of chats or texts that a model writes as training data for its drafter."""

    target: Path = field(metadata={"help": "the model: a folder, a GGUF file or a short name"})
    out: Path = field(metadata={"help": "folder for the chats; a stopped run in it is resumed"})
    tokens: int = setting(1_000_000, "tokens of answers to write")
    rows: int = setting(96, "chats written at the same time")
    longest: int = setting(384, "most tokens of a chat; at most the model's context")
    temperature: tuple[float, ...] = setting(
        (1.0,), "a temperature of answers; may be given several times, and each chat takes one"
    )
    seed: int = setting(0, "seed of all random choices")

    def __post_init__(self) -> None:
        for name in ("tokens", "rows", "longest"):
            integer(name, getattr(self, name), 1)
        if not self.temperature:
            raise ConfigError("no temperature was given: name at least one")
        for value in self.temperature:
            Sampling(temperature=value)


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Settings of a drafter that reads a model's hidden states."""

    target: Path = field(metadata={"help": "the model: a folder, a GGUF file or a short name"})
    out: Path = field(metadata={"help": "folder for the drafter; a stopped run in it is resumed"})
    chats: Path | None = setting(None, "folder of chats; by default, chats in --out")
    tokens: int = setting(300_000, "tokens of answers to write, unless --chats is given")
    start: Path | None = setting(None, "drafter to train further; a new one by default")
    steps: int | None = setting(None, "optimizer steps, in place of --epochs")
    epochs: float = setting(4.0, "passes over the chats, unless --steps is given")
    minutes: float | None = setting(None, "time limit; the learning rate falls to zero by then")
    batch: int = setting(8, "chats per step")
    anchors: int = setting(32, "blocks of each chat in a step")
    block: int = setting(5, "tokens drafted in one pass")
    layers: int = setting(1, "layers of the drafter")
    rank: int = setting(64, "rank of the Markov head")
    draft_vocab: int = setting(8192, "most tokens that the drafter can propose")
    learning_rate: float = setting(2e-3, "peak learning rate; it falls linearly to zero")
    warmup: int = setting(100, "steps until the peak learning rate")
    weight_decay: float = setting(0.01, "decoupled weight decay")
    beta2: float = setting(0.95, "beta2 of AdamW (beta1 is 0.9)")
    clip: float = setting(1.0, "largest norm of the gradient")
    seed: int = setting(0, "seed of the initial weights and of the data's order")
    save_every: int = setting(250, "steps between checkpoints (the last two are kept)")
    report_every: int = setting(250, "steps between reports on held-out text")


@dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    """Settings of a drafter that is trained further on its user's own texts."""

    target: str = field(metadata={"help": "the model: a short name, or a GGUF file, whose drafter this package holds"})
    texts: tuple[Path, ...] = setting((), "a file or a folder of texts; may be given several times")
    minutes: float = setting(10.0, "time limit of the training; reading the texts comes before it")
    tokens: int = setting(60_000, "most tokens of the texts, 5 kB of temporary files each for smollm2")
    seed: int = setting(0, "seed of all random choices")

    def __post_init__(self) -> None:
        integer("tokens", self.tokens, LEAST_TOKENS)
        if not self.minutes > 0:
            raise ConfigError(f"minutes is {self.minutes}: give more than 0")
        integer("seed", self.seed, 0)
