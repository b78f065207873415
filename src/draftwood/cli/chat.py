"""``draftwood chat``."""

from __future__ import annotations

from typing import Any

import click

from draftwood.cli.options import Changes, Sectioned, Sections, given, pick, section_options
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import TEXT_SECTIONS, ChatOptions, DisplayOptions, Settings
from draftwood.core.errors import ConfigError
from draftwood.loading.names import check_models
from draftwood.loading.templates import refuse_without_template

SECTIONS: Sections = {**TEXT_SECTIONS, "Chat": (ChatOptions, DisplayOptions)}
CHANGES: Changes = {
    "target": {"default": "smollm2", "help": "chat model that answers"},
    "max_new_tokens": {"default": None, "help": "the most tokens of an answer; default: the model's own, else 1024"},
    "compare": {"help": "with a MESSAGE: answer by plain decoding too, and compare"},
}


@click.command(name="chat", cls=Sectioned, sections=SECTIONS)
@click.argument("message", required=False)
@section_options(SECTIONS, leave_out=("json",), changes=CHANGES)
@click.pass_context
def command(ctx: click.Context, /, message: str | None, **options: Any) -> None:
    """Talk with a chat model. Only what is new in the chat is read for each answer.

    With a MESSAGE the command answers it and ends. On a terminal, Ctrl-C stops an answer, and Ctrl-D ends the chat. From a
    pipe or a file, every line is a message, and the answers go to standard output. Speeds go to standard error.
    """
    chat, settings = pick(ChatOptions, options), Settings.of(options, given(ctx))
    if settings.display.compare and chat.quiet:
        raise ConfigError("--compare shows two speeds, and --quiet shows none: leave out one of them")
    if message is None and settings.display.compare:
        raise ConfigError("--compare is for a single answer: give the message as an argument, or leave it out")
    check_models("language", settings.models.target, settings.models.draft)
    if not settings.loading.trust_remote_code:  # whose code may bring a template
        refuse_without_template(options["target"])
    with loading_libraries():
        from draftwood.cli.conversation import ask, converse
    if message is None:
        converse(settings, chat)
    else:
        ask(settings, chat, message)
