"""Settings of training runs. Command-line options and records are derived from them; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from draftwood.core.checks import integer, setting
from draftwood.core.errors import ConfigError
from draftwood.sampling.settings import Sampling

Optimizer = Literal["muon", "adamw"]
LEAST_TOKENS: Final = 2_000
"""Fewer tokens of texts show nothing about a drafter."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of any training run."""

    out: Path = field(metadata={"help": "folder for the model; a stopped run in it is resumed"})
    steps: int | None = setting(None, "optimizer steps; by default, one pass over the data")
    minutes: float | None = setting(None, "time limit; the learning rate falls to zero by then")
    batch: int = setting(8, "blocks per step")
    optimizer: Optimizer = setting("muon", "muon uses AdamW for embeddings and norms")
    learning_rate: float = setting(2e-3, "peak learning rate; it falls linearly to zero")
    warmup: int = setting(100, "steps until the peak learning rate")
    weight_decay: float = setting(0.1, "decoupled weight decay")
    beta2: float = setting(0.95, "beta2 of AdamW (beta1 is 0.9) and momentum of Muon")
    clip: float = setting(1.0, "largest norm of the gradient")
    compile: bool = setting(False, "fuse operations with torch.compile (needs a C++ compiler)")
    seed: int = setting(0, "seed of the initial weights and of the data's order")
    save_every: int = setting(250, "steps between checkpoints (the last two are kept)")
    report_every: int = setting(250, "steps between reports on held-out text")


@dataclass(frozen=True, kw_only=True)
class TextConfig(RunConfig):
    """Settings of a run on packed text."""

    data: Path = field(metadata={"help": "folder with NAME.train.txt[.xz] and NAME.val.txt[.xz]"})
    start: Path | None = setting(None, "model to start from; random weights by default")
    mix: str = setting("tinystories=1", "epochs of each source: NAME=EPOCHS,...")
    context: int = setting(512, "tokens per block")
    report_blocks: int = setting(8, "held-out blocks per source in reports")


@dataclass(frozen=True, kw_only=True)
class PairsConfig(RunConfig):
    """Settings of a run on sentence pairs."""

    data: Path = field(metadata={"help": "folder with NAME.train.LANGUAGE[.xz] and NAME.val.LANGUAGE[.xz], line by line"})
    source_language: str = setting("de", "language to translate from, as in file names")
    target_language: str = setting("en", "language to translate to, as in file names")
    epochs: int = setting(10, "passes over the pairs, unless --steps is given")
    batch: int = setting(6000, "tokens per step, both languages and padding included")
    warmup: int = setting(300, "steps until the peak learning rate")
    label_smoothing: float = setting(0.1, "share of the loss spread over all tokens")
    dropout: float = setting(0.1, "dropout in the residual stream")
    report_pairs: int = setting(200, "held-out pairs in reports")

    @property
    def languages(self) -> tuple[str, str]:
        """The source's and the target's language."""
        return self.source_language, self.target_language


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(PairsConfig):
    """Settings of a translation model from scratch."""

    vocab: int = setting(6000, "entries of the tokenizer that both languages share")
    context: int = setting(128, "longest sentence in tokens; longer pairs are left out")
    hidden: int = setting(256, "width of the residual stream")
    encoder_layers: int = setting(3, "layers that read the source")
    decoder_layers: int = setting(5, "layers that write the translation")
    heads: int = setting(4, "attention heads")
    intermediate: int = setting(512, "width of the feed-forward part")


@dataclass(frozen=True, kw_only=True)
class LMConfig(TextConfig):
    """Settings of a language model, trained from scratch or further."""

    vocab: int = setting(4096, "entries of a new tokenizer")
    tokenizer: Path | None = setting(None, "folder of a tokenizer; by default that of --start, or a new one")
    hidden: int = setting(320, "width of the residual stream")
    layers: int = setting(8, "transformer layers")
    heads: int = setting(5, "attention heads")
    intermediate: int = setting(864, "width of the feed-forward part")


@dataclass(frozen=True, kw_only=True)
class DraftConfig(TextConfig):
    """Settings of a drafter distilled from a target."""

    target: Path = field(metadata={"help": "the target model: a folder, a GGUF file or a short name"})
    hidden: int = setting(128, "width of the residual stream")
    layers: int = setting(2, "transformer layers")
    heads: int = setting(4, "attention heads")
    intermediate: int = setting(384, "width of the feed-forward part")
    tvd_weight: float = setting(2.0, "weight of the total variation distance, which is added to KL(target || draft)")
    tokens: int = setting(300_000, "tokens that the target writes to train on, unless --chats is given")
    chats: Path | None = setting(None, "folder of chats or texts that the target wrote; by default, new ones in --out")
    sampled_epochs: float = setting(2.0, "epochs of what the target wrote")


@dataclass(frozen=True, kw_only=True)
class ChatsConfig:
    """Settings of chats or texts that a model writes as training data for its drafter."""

    target: Path = field(metadata={"help": "the model: a folder, a GGUF file or a short name"})
    out: Path = field(metadata={"help": "folder for the chats; a stopped run in it is resumed"})
    data: Path | None = setting(None, "folder with NAME.train.txt[.xz]: some user turns, or beginnings of texts")
    tokens: int = setting(1_000_000, "tokens of answers to write")
    rows: int = setting(96, "chats written at the same time")
    longest: int = setting(384, "most tokens of a chat; at most the model's context")
    temperature: tuple[float, ...] = setting(
        (1.0,), "a temperature of answers; may be given several times, and each chat takes one"
    )
    seed: int = setting(0, "seed of all random choices")

    def __post_init__(self) -> None:
        for name in ("tokens", "rows", "longest"):
            if integer(name, getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if not self.temperature:
            raise ConfigError("no temperature was given: name at least one")
        for value in self.temperature:
            Sampling(temperature=value)


@dataclass(frozen=True, kw_only=True)
class DrafterConfig(RunConfig):
    """Settings of a drafter that reads a model's hidden states."""

    target: Path = field(metadata={"help": "the model: a folder, a GGUF file or a short name"})
    data: Path | None = setting(None, "folder with NAME.train.txt[.xz]: some user turns, or beginnings of texts")
    chats: Path | None = setting(None, "folder of chats; by default, chats in --out")
    tokens: int = setting(300_000, "tokens of answers to write, unless --chats is given")
    start: Path | None = setting(None, "drafter to train further; a new one by default")
    epochs: float = setting(4.0, "passes over the chats, unless --steps is given")
    batch: int = setting(8, "chats per step")
    anchors: int = setting(32, "blocks of each chat in a step")
    block: int = setting(5, "tokens drafted in one pass")
    layers: int = setting(1, "layers of the drafter")
    rank: int = setting(64, "rank of the Markov head")
    draft_vocab: int = setting(8192, "most tokens that the drafter can propose")
    optimizer: Optimizer = setting("adamw", "muon takes half of the time of such short steps")
    weight_decay: float = setting(0.01, "decoupled weight decay")


@dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    """Settings of a drafter that is trained further on its user's own texts."""

    target: str = field(metadata={"help": "the model: a short name, or a GGUF file, whose drafter this package holds"})
    texts: tuple[Path, ...] = setting((), "a file or a folder of texts; may be given several times")
    minutes: float = setting(10.0, "time limit of the training; reading the texts comes before it")
    tokens: int = setting(60_000, "most tokens of the texts, 5 kB of temporary files each for smollm2")
    seed: int = setting(0, "seed of all random choices")

    def __post_init__(self) -> None:
        if integer("tokens", self.tokens) < LEAST_TOKENS:
            raise ConfigError(f"tokens is {self.tokens}: give {LEAST_TOKENS} or more")
        if not self.minutes > 0:
            raise ConfigError(f"minutes is {self.minutes}: give more than 0")
        if integer("seed", self.seed) < 0:
            raise ConfigError(f"seed is {self.seed}: give 0 or more")


@dataclass(frozen=True, kw_only=True)
class SpecDrafterConfig(PairsConfig):
    """Settings of a drafter that drafts a block of tokens for a translation model in one pass."""

    target: Path = field(metadata={"help": "folder of the translation model and its tokenizer"})
    outputs: int | None = setting(None, "training sentences that the target translates; all by default")
    block: int = setting(25, "tokens drafted in one pass")
    block_from: int | None = setting(None, "shortest block to train on; --block by default")
    decoder_layers: int = setting(2, "decoder layers of the drafter")
    intermediate: int = setting(256, "width of these layers' feed-forward part")
    glance_start: float = setting(0.5, "share of wrong positions revealed at first")
    glance_end: float = setting(0.3, "share of wrong positions revealed at the end")

    def __post_init__(self) -> None:
        for name in ("glance_start", "glance_end"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number from 0 to less than 1")
        if not 1 <= self.shortest_block <= self.block:
            raise ConfigError(
                f"block lengths are {self.shortest_block} to {self.block} tokens; give 1 or more, and --block-from at most "
                "--block"
            )

    @property
    def shortest_block(self) -> int:
        """The shortest block to train on, in tokens."""
        return self.block if self.block_from is None else self.block_from


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Settings of the mean of several models."""

    models: tuple[Path, ...] = setting((), "folder of a saved model; repeatable")
    data: Path = field(metadata={"help": "folder with NAME.train.txt[.xz] and NAME.val.txt[.xz], for held-out losses"})
    out: Path = field(metadata={"help": "folder for the mean"})
    batch: int = setting(8, "held-out blocks at a time")
