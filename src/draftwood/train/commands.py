"""``draftwood train``: one subcommand per kind of training, with options from its dataclass of settings."""

from __future__ import annotations

from typing import Any

import click

from draftwood.core.options import dataclass_options
from draftwood.train.config import (
    AverageConfig,
    ChatsConfig,
    DraftConfig,
    DrafterConfig,
    LMConfig,
    SpecDrafterConfig,
    TranslatorConfig,
)


@click.group(name="train")
def group() -> None:
    """Train a small language model, or a drafter for a model."""


@group.command(name="lm")
@dataclass_options(LMConfig)
def lm(**options: Any) -> None:
    """Train a small language model and its tokenizer from text."""
    from draftwood.loading.models import quiet_loading
    from draftwood.train.lm import train_lm

    quiet_loading()
    train_lm(LMConfig(**options))


@group.command(name="draft")
@dataclass_options(DraftConfig)
def draft(**options: Any) -> None:
    """Distil a drafter from a target, on text and on the target's own samples."""
    from draftwood.loading.models import quiet_loading
    from draftwood.train.draft import train_draft

    quiet_loading()
    train_draft(DraftConfig(**options))


@group.command(name="drafter")
@dataclass_options(DrafterConfig)
def drafter(**options: Any) -> None:
    """Train a drafter that reads a model's hidden states, on chats or texts that the model writes."""
    from draftwood.loading.models import quiet_loading
    from draftwood.train.drafter import train_drafter

    quiet_loading()
    train_drafter(DrafterConfig(**options))


@group.command(name="average")
@dataclass_options(AverageConfig)
def average(**options: Any) -> None:
    """Average the weights of models from one training."""
    from draftwood.loading.models import quiet_loading
    from draftwood.train import average

    quiet_loading()
    average.average(AverageConfig(**options))


@group.command(name="translator")
@dataclass_options(TranslatorConfig)
def translator(**options: Any) -> None:
    """Train a small translation model and its tokenizer from sentence pairs."""
    from draftwood.loading.models import quiet_loading
    from draftwood.train.translator import train_translator

    quiet_loading()
    train_translator(TranslatorConfig(**options))


@group.command(name="spec-drafter")
@dataclass_options(SpecDrafterConfig)
def spec_drafter(**options: Any) -> None:
    """Distil a block drafter from a translation model, on that model's own translations."""
    from draftwood.loading.models import quiet_loading
    from draftwood.train.spec_drafter import train_spec_drafter

    quiet_loading()
    train_spec_drafter(SpecDrafterConfig(**options))


@group.command(name="chats")
@dataclass_options(ChatsConfig)
def chats(**options: Any) -> None:
    """Let a model write chats (user turns and answers), or plain texts, as training data for its drafter."""
    from draftwood.loading.models import quiet_loading
    from draftwood.train.chats import write_chats

    quiet_loading()
    write_chats(ChatsConfig(**options))
