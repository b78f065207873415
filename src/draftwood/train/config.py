"""Settings of training runs. Command-line options and records are derived from them; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from draftwood.core.checks import integer, number
from draftwood.core.errors import ConfigError
from draftwood.sampling.settings import Sampling

Optimizer = Literal["muon", "adamw"]
Loss = Literal["ce", "kl", "reverse_kl", "jsd", "tvd"]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of any training run."""

    out: Path = field(metadata={"help": "folder for the model; a stopped run in it is resumed"})
    steps: int | None = field(default=None, metadata={"help": "optimizer steps; by default, one pass over the data"})
    minutes: float | None = field(default=None, metadata={"help": "time limit; the learning rate falls to zero by then"})
    batch: int = field(default=8, metadata={"help": "blocks per step"})
    optimizer: Optimizer = field(default="muon", metadata={"help": "muon uses AdamW for embeddings and norms"})
    learning_rate: float = field(default=2e-3, metadata={"help": "peak learning rate; it falls linearly to zero"})
    warmup: int = field(default=100, metadata={"help": "steps until the peak learning rate"})
    weight_decay: float = field(default=0.1, metadata={"help": "decoupled weight decay"})
    beta2: float = field(default=0.95, metadata={"help": "beta2 of AdamW (beta1 is 0.9) and momentum of Muon"})
    clip: float = field(default=1.0, metadata={"help": "largest norm of the gradient"})
    compile: bool = field(default=False, metadata={"help": "fuse operations with torch.compile (needs a C++ compiler)"})
    seed: int = field(default=0, metadata={"help": "seed of the initial weights and of the data's order"})
    save_every: int = field(default=250, metadata={"help": "steps between checkpoints (the last two are kept)"})
    report_every: int = field(default=250, metadata={"help": "steps between reports on held-out text"})


@dataclass(frozen=True, kw_only=True)
class TextConfig(RunConfig):
    """Settings of a run on packed text."""

    data: Path = field(metadata={"help": "folder with NAME.train.txt[.xz] and NAME.val.txt[.xz]"})
    start: Path | None = field(default=None, metadata={"help": "model to start from; random weights by default"})
    mix: str = field(default="tinystories=1", metadata={"help": "epochs of each source: NAME=EPOCHS,..."})
    context: int = field(default=512, metadata={"help": "tokens per block"})
    report_blocks: int = field(default=8, metadata={"help": "held-out blocks per source in reports"})


@dataclass(frozen=True, kw_only=True)
class PairsConfig(RunConfig):
    """Settings of a run on sentence pairs."""

    data: Path = field(metadata={"help": "folder with NAME.train.LANGUAGE[.xz] and NAME.val.LANGUAGE[.xz], line by line"})
    source_language: str = field(default="de", metadata={"help": "language to translate from, as in file names"})
    target_language: str = field(default="en", metadata={"help": "language to translate to, as in file names"})
    epochs: int = field(default=10, metadata={"help": "passes over the pairs, unless --steps is given"})
    batch: int = field(default=6000, metadata={"help": "tokens per step, both languages and padding included"})
    warmup: int = field(default=300, metadata={"help": "steps until the peak learning rate"})
    label_smoothing: float = field(default=0.1, metadata={"help": "share of the loss spread over all tokens"})
    dropout: float = field(default=0.1, metadata={"help": "dropout in the residual stream"})
    report_pairs: int = field(default=200, metadata={"help": "held-out pairs in reports"})


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig(PairsConfig):
    """Settings of a translation model from scratch."""

    vocab: int = field(default=6000, metadata={"help": "entries of the tokenizer that both languages share"})
    context: int = field(default=128, metadata={"help": "longest sentence in tokens; longer pairs are left out"})
    hidden: int = field(default=256, metadata={"help": "width of the residual stream"})
    encoder_layers: int = field(default=3, metadata={"help": "layers that read the source"})
    decoder_layers: int = field(default=5, metadata={"help": "layers that write the translation"})
    heads: int = field(default=4, metadata={"help": "attention heads"})
    intermediate: int = field(default=512, metadata={"help": "width of the feed-forward part"})


@dataclass(frozen=True, kw_only=True)
class LMConfig(TextConfig):
    """Settings of a language model, trained from scratch or further."""

    vocab: int = field(default=4096, metadata={"help": "entries of a new tokenizer"})
    tokenizer: Path | None = field(
        default=None, metadata={"help": "folder of a tokenizer; by default that of --start, or a new one"}
    )
    hidden: int = field(default=320, metadata={"help": "width of the residual stream"})
    layers: int = field(default=8, metadata={"help": "transformer layers"})
    heads: int = field(default=5, metadata={"help": "attention heads"})
    intermediate: int = field(default=864, metadata={"help": "width of the feed-forward part"})


@dataclass(frozen=True, kw_only=True)
class DraftConfig(TextConfig):
    """Settings of a drafter distilled from a target."""

    target: Path = field(metadata={"help": "the target model: a folder, a GGUF file or a short name"})
    hidden: int = field(default=128, metadata={"help": "width of the residual stream"})
    layers: int = field(default=2, metadata={"help": "transformer layers"})
    heads: int = field(default=4, metadata={"help": "attention heads"})
    intermediate: int = field(default=384, metadata={"help": "width of the feed-forward part"})
    loss: Loss = field(default="kl", metadata={"help": "distance to the target's next-token distribution"})
    tvd_weight: float = field(default=2.0, metadata={"help": "weight of an added total variation distance"})
    sampled: int = field(default=1024, metadata={"help": "training blocks that the target writes itself"})
    sampled_epochs: float = field(default=2.0, metadata={"help": "epochs of these blocks, or of --chats"})
    chats: Path | None = field(
        default=None,
        metadata={"help": "folder of chats that the target wrote, to train on in place of blocks that it writes now"},
    )
    sample_rows: int = field(default=64, metadata={"help": "blocks that the target writes at the same time"})
    prefix: int = field(default=16, metadata={"help": "most tokens of a document at the start of a written block"})

    def __post_init__(self) -> None:
        of_samples = (one for one in fields(self) if one.name in ("sampled", "sample_rows", "prefix"))
        given = [one.name for one in of_samples if getattr(self, one.name) != one.default]
        if self.chats is not None and given:
            raise ConfigError(f"chats were given, so the target writes nothing now: leave {', '.join(given)} out")


@dataclass(frozen=True, kw_only=True)
class ChatsConfig:
    """Settings of chats or texts that a model writes as training data for its drafter."""

    target: Path = field(metadata={"help": "the model: a folder, a GGUF file or a short name"})
    out: Path = field(metadata={"help": "folder for the chats; a stopped run in it is resumed"})
    data: Path | None = field(
        default=None, metadata={"help": "folder with NAME.train.txt[.xz]: some user turns, or beginnings of texts"}
    )
    tokens: int = field(default=1_000_000, metadata={"help": "tokens of answers to write"})
    rows: int = field(default=96, metadata={"help": "chats written at the same time"})
    longest: int = field(default=384, metadata={"help": "most tokens of a chat; at most the model's context"})
    temperature: tuple[float, ...] = field(
        default=(1.0,), metadata={"help": "a temperature of answers; may be given several times, and each chat takes one"}
    )
    dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", metadata={"help": "number format of the model; by default, the faster one on this processor"}
    )
    seed: int = field(default=0, metadata={"help": "seed of all random choices"})

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
    data: Path | None = field(
        default=None, metadata={"help": "folder with NAME.train.txt[.xz]: some user turns, or beginnings of texts"}
    )
    chats: Path | None = field(default=None, metadata={"help": "folder of chats; by default, chats in --out"})
    tokens: int = field(default=300_000, metadata={"help": "tokens of answers to write, unless --chats is given"})
    start: Path | None = field(default=None, metadata={"help": "drafter to train further; a new one by default"})
    start_share: float = field(default=0.0, metadata={"help": "share of the weights of --start in those of the result"})
    start_layers: bool = field(default=True, metadata={"help": "a new drafter begins with the target's last layers"})
    epochs: float = field(default=4.0, metadata={"help": "passes over the chats, unless --steps is given"})
    batch: int = field(default=8, metadata={"help": "chats per step"})
    anchors: int = field(default=32, metadata={"help": "blocks of each chat in a step"})
    block: int = field(default=5, metadata={"help": "tokens drafted in one pass"})
    layers: int = field(default=1, metadata={"help": "layers of the drafter"})
    rank: int = field(default=64, metadata={"help": "rank of the Markov head"})
    draft_vocab: int = field(default=8192, metadata={"help": "most tokens that the drafter can propose"})
    optimizer: Optimizer = field(default="adamw", metadata={"help": "muon takes half of the time of such short steps"})
    weight_decay: float = field(default=0.01, metadata={"help": "decoupled weight decay"})

    def __post_init__(self) -> None:
        if not 0 <= number("start_share", self.start_share) < 1:
            raise ConfigError(f"start_share is {self.start_share}: give a number from 0 to less than 1")
        if self.start_share and self.start is None:
            raise ConfigError(
                f"start_share is {self.start_share}, but no drafter is there to take weights from: give --start"
            )


@dataclass(frozen=True, kw_only=True)
class SpecDrafterConfig(PairsConfig):
    """Settings of a drafter that drafts a block of tokens for a translation model in one pass."""

    target: Path = field(metadata={"help": "folder of the translation model and its tokenizer"})
    outputs: int | None = field(
        default=None, metadata={"help": "training sentences that the target translates; all by default"}
    )
    block: int = field(default=25, metadata={"help": "tokens drafted in one pass"})
    block_from: int | None = field(default=None, metadata={"help": "shortest block to train on; --block by default"})
    decoder_layers: int = field(default=2, metadata={"help": "decoder layers of the drafter"})
    intermediate: int = field(default=256, metadata={"help": "width of these layers' feed-forward part"})
    glance_start: float = field(default=0.5, metadata={"help": "share of wrong positions revealed at first"})
    glance_end: float = field(default=0.3, metadata={"help": "share of wrong positions revealed at the end"})


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Settings of the mean of several models."""

    models: tuple[Path, ...] = field(default=(), metadata={"help": "folder of a saved model; repeatable"})
    data: Path = field(metadata={"help": "folder with NAME.train.txt[.xz] and NAME.val.txt[.xz], for held-out losses"})
    out: Path = field(metadata={"help": "folder for the mean"})
    batch: int = field(default=8, metadata={"help": "held-out blocks at a time"})
