"""``draftwood train``: a drafter, or chats for one, with options from the dataclass of settings.

What a command can refuse by its settings and by the names of models, it refuses before PyTorch is imported.
"""

from __future__ import annotations

from typing import Any

import click

from draftwood.cli.options import dataclass_options
from draftwood.loading.names import locate
from draftwood.train.config import ChatsConfig, DrafterConfig


@click.group(name="train")
def group() -> None:
    """Train a drafter for a model, or let a model write chats for that."""


@group.command(name="drafter")
@dataclass_options(DrafterConfig)
def drafter(**options: Any) -> None:
    """Train a drafter that reads a model's hidden states, on chats or texts that the model writes."""
    config = DrafterConfig(**options)
    locate(config.target, fetch=False)

    from draftwood.loading.models import quiet_loading
    from draftwood.train.drafter import train_drafter

    quiet_loading()
    train_drafter(config)


@group.command(name="chats")
@dataclass_options(ChatsConfig)
def chats(**options: Any) -> None:
    """Let a model write chats (user turns and answers), or plain texts, as training data for its drafter."""
    config = ChatsConfig(**options)
    locate(config.target, fetch=False)

    from draftwood.loading.models import quiet_loading
    from draftwood.train.chats import write_chats

    quiet_loading()
    write_chats(config)
