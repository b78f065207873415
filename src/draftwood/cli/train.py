"""``draftwood train``: one subcommand per kind of training, with options from its dataclass of settings.

What a command can refuse by its settings and by the names of models, it refuses before PyTorch is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

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

_COMMANDS: Final[dict[str, tuple[type[Any], str, str]]] = {  # settings, what runs, help
    "lm": (LMConfig, "lm.train_lm", "Train a small language model and its tokenizer from text."),
    "draft": (DraftConfig, "draft.train_draft", "Distil a drafter from a target, on text and on the target's own samples."),
    "drafter": (
        DrafterConfig,
        "drafter.train_drafter",
        "Train a drafter that reads a model's hidden states, on chats or texts that the model writes.",
    ),
    "average": (AverageConfig, "lm.average", "Average the weights of models from one training."),
    "translator": (
        TranslatorConfig,
        "translator.train_translator",
        "Train a small translation model and its tokenizer from sentence pairs.",
    ),
    "spec-drafter": (
        SpecDrafterConfig,
        "spec_drafter.train_spec_drafter",
        "Distil a block drafter from a translation model, on that model's own translations.",
    ),
    "chats": (
        ChatsConfig,
        "chats.write_chats",
        "Let a model write chats (user turns and answers), or plain texts, as training data for its drafter.",
    ),
}


@click.group(name="train")
def group() -> None:
    """Train a small language model, or a drafter for a model."""


def _add(name: str, settings: type[Any], runs: str, text: str) -> None:
    """Add a command to the group."""

    @group.command(name=name, help=text)
    @dataclass_options(settings)
    def command(**options: Any) -> None:
        config = settings(**options)
        if hasattr(config, "target"):
            check_model(config.target)

        from draftwood.loading.models import quiet_loading

        module, _, function = runs.partition(".")
        train = getattr(import_module(f"draftwood.train.{module}"), function)
        quiet_loading()
        train(config)


for _name, _command in _COMMANDS.items():
    _add(_name, *_command)
