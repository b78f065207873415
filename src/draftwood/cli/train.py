"""``draftwood train``: one subcommand per kind of training, with options from its dataclass of settings.

What a command can refuse by its settings and by the names of models, it refuses before PyTorch is imported.
"""

from __future__ import annotations

from typing import Any

import click

from draftwood.cli.options import dataclass_options
from draftwood.loading.names import check_model
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
    config = LMConfig(**options)

    from draftwood.loading.models import quiet_loading
    from draftwood.train.lm import train_lm

    quiet_loading()
    train_lm(config)


@group.command(name="draft")
@dataclass_options(DraftConfig)
def draft(**options: Any) -> None:
    """Distil a drafter from a target, on text and on the target's own samples."""
    config = DraftConfig(**options)
    check_model(config.target)

    from draftwood.loading.models import quiet_loading
    from draftwood.train.draft import train_draft

    quiet_loading()
    train_draft(config)


@group.command(name="drafter")
@dataclass_options(DrafterConfig)
def drafter(**options: Any) -> None:
    """Train a drafter that reads a model's hidden states, on chats or texts that the model writes."""
    config = DrafterConfig(**options)
    check_model(config.target)

    from draftwood.loading.models import quiet_loading
    from draftwood.train.drafter import train_drafter

    quiet_loading()
    train_drafter(config)


@group.command(name="average")
@dataclass_options(AverageConfig)
def average(**options: Any) -> None:
    """Average the weights of models from one training."""
    config = AverageConfig(**options)

    from draftwood.loading.models import quiet_loading
    from draftwood.train import average

    quiet_loading()
    average.average(config)


@group.command(name="translator")
@dataclass_options(TranslatorConfig)
def translator(**options: Any) -> None:
    """Train a small translation model and its tokenizer from sentence pairs."""
    config = TranslatorConfig(**options)

    from draftwood.loading.models import quiet_loading
    from draftwood.train.translator import train_translator

    quiet_loading()
    train_translator(config)


@group.command(name="spec-drafter")
@dataclass_options(SpecDrafterConfig)
def spec_drafter(**options: Any) -> None:
    """Distil a block drafter from a translation model, on that model's own translations."""
    config = SpecDrafterConfig(**options)
    check_model(config.target)

    from draftwood.loading.models import quiet_loading
    from draftwood.train.spec_drafter import train_spec_drafter

    quiet_loading()
    train_spec_drafter(config)


@group.command(name="chats")
@dataclass_options(ChatsConfig)
def chats(**options: Any) -> None:
    """Let a model write chats (user turns and answers), or plain texts, as training data for its drafter."""
    config = ChatsConfig(**options)
    check_model(config.target)

    from draftwood.loading.models import quiet_loading
    from draftwood.train.chats import write_chats

    quiet_loading()
    write_chats(config)
