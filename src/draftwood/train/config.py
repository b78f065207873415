"""Settings of the training runs. Command-line options and records are derived from these; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Optimizer = Literal["muon", "adamw"]
Loss = Literal["ce", "kl", "reverse_kl", "jsd", "tvd"]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of any training run."""

    data: Path = field(metadata={"help": "folder with NAME.train.txt[.xz] and NAME.val.txt[.xz]"})
    out: Path = field(metadata={"help": "folder for the model; a stopped run in it is resumed"})
    start: Path | None = field(default=None, metadata={"help": "model to start from; without it, random weights"})
    mix: str = field(default="tinystories=1", metadata={"help": "how often each source is seen: NAME=EPOCHS,..."})
    steps: int | None = field(default=None, metadata={"help": "optimizer steps; without it, one pass over the mix"})
    minutes: float | None = field(default=None, metadata={"help": "stop by then, the learning rate falling with the clock"})
    batch: int = field(default=8, metadata={"help": "blocks per step"})
    context: int = field(default=512, metadata={"help": "tokens per block"})
    optimizer: Optimizer = field(default="muon", metadata={"help": "muon leaves embeddings and norms to AdamW"})
    learning_rate: float = field(default=2e-3, metadata={"help": "peak learning rate; it falls linearly to zero"})
    warmup: int = field(default=100, metadata={"help": "steps until the peak learning rate"})
    weight_decay: float = field(default=0.1, metadata={"help": "decoupled weight decay"})
    beta2: float = field(default=0.95, metadata={"help": "beta2 of AdamW (beta1 is 0.9) and momentum of Muon"})
    clip: float = field(default=1.0, metadata={"help": "largest norm of the gradient"})
    compile: bool = field(default=False, metadata={"help": "fuse operations with torch.compile (needs a C++ compiler)"})
    seed: int = field(default=0, metadata={"help": "seed of initial weights and of the order of the data"})
    save_every: int = field(default=250, metadata={"help": "steps between checkpoints (the last two are kept)"})
    report_every: int = field(default=250, metadata={"help": "steps between reports on held-out text"})
    report_blocks: int = field(default=8, metadata={"help": "held-out blocks per source in these reports"})


@dataclass(frozen=True, kw_only=True)
class LMConfig(RunConfig):
    """Settings of a language model: from scratch, or trained on."""

    vocab: int = field(default=4096, metadata={"help": "entries of the tokenizer, where one is trained"})
    tokenizer: Path | None = field(
        default=None, metadata={"help": "folder of a tokenizer; else that of --start, or a new one"}
    )
    hidden: int = field(default=320, metadata={"help": "width of the residual stream"})
    layers: int = field(default=8, metadata={"help": "transformer layers"})
    heads: int = field(default=5, metadata={"help": "attention heads"})
    intermediate: int = field(default=864, metadata={"help": "width of the feed-forward part"})


@dataclass(frozen=True, kw_only=True)
class DraftConfig(RunConfig):
    """Settings of a drafter distilled from a target."""

    target: Path = field(metadata={"help": "folder of the target model and its tokenizer"})
    hidden: int = field(default=128, metadata={"help": "width of the residual stream"})
    layers: int = field(default=2, metadata={"help": "transformer layers"})
    heads: int = field(default=4, metadata={"help": "attention heads"})
    intermediate: int = field(default=384, metadata={"help": "width of the feed-forward part"})
    loss: Loss = field(default="kl", metadata={"help": "distance to the target's next-token law"})
    tvd_weight: float = field(default=2.0, metadata={"help": "weight of the total variation distance beside the loss"})
    sampled: int = field(default=1024, metadata={"help": "blocks that the target writes itself, to train on"})
    sampled_epochs: float = field(default=2.0, metadata={"help": "how often these blocks are seen"})
    sample_rows: int = field(default=64, metadata={"help": "blocks that the target writes at the same time"})
    prefix: int = field(default=16, metadata={"help": "most tokens of a document that a written block starts with"})


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Settings of the mean of several models."""

    models: tuple[Path, ...] = field(default=(), metadata={"help": "folder of a saved model; give it several times"})
    data: Path = field(metadata={"help": "folder with NAME.train.txt[.xz] and NAME.val.txt[.xz], for held-out losses"})
    out: Path = field(metadata={"help": "folder for the mean"})
    batch: int = field(default=8, metadata={"help": "held-out blocks at a time"})
