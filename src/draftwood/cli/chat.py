"""``draftwood chat``."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftwood.cli.chat_file import read_chat
from draftwood.cli.console import text_of
from draftwood.cli.options import Changes, Sectioned, Sections, own_defaults, pick
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import DRAFTING, TEXT_SECTIONS, ChatOptions, DisplayOptions, Settings
from draftwood.core.errors import ConfigError
from draftwood.loading.names import check_models, recommended
from draftwood.loading.outline import refuse_without_template

SECTIONS: Sections = {**TEXT_SECTIONS, "Drafting": DRAFTING, "Chat": (ChatOptions, DisplayOptions)}
_TARGET = "smollm2"
CHANGES: Changes = {
    **own_defaults(_TARGET, recommended(_TARGET)),
    "target": {"default": _TARGET, "help": "chat model that answers"},
    "max_new_tokens": {"default": None, "help": "the most tokens of an answer; default: the model's own, else 1024"},
    "compare": {"help": "with a MESSAGE: answer by plain decoding too, and compare"},
}


@click.command(name="chat", cls=Sectioned, sections=SECTIONS, leave_out=("json",), changes=CHANGES)
@click.argument("message", required=False)
def command(message: str | None, **options: Any) -> None:
    """Talk with a chat model. Only what is new in the chat is read for each answer.

    With a MESSAGE the command answers it and ends; - is all of standard input, which is also read where that is a file or a
    pipe. The answer goes to standard output. On a terminal a chat begins. Ctrl-C stops an answer there, and Ctrl-D ends the
    chat. A pasted text is one message, and a backslash at the end of a line begins a new one; /help lists commands.
    """
    chat, settings = pick(ChatOptions, options), Settings.of(options)
    if settings.display.compare and chat.quiet:
        raise ConfigError("--compare shows two speeds, and --quiet shows none: leave out one of them")
    if message is None and not (sys.stdin and sys.stdin.isatty()):
        message = "-"
    if message is None and settings.display.compare:
        raise ConfigError("--compare is for a single answer: give the message as an argument, or leave it out")
    if chat.resume is not None:
        read_chat(chat.resume)
    check_models("language", settings.models.target, settings.models.draft)
    if not settings.loading.trust_remote_code:  # whose code may bring a template
        refuse_without_template(options["target"])
    if message is not None and not (message := text_of("message", message)).strip():
        raise ConfigError("the message is empty: write one, or run the command on a terminal to begin a chat")
    with loading_libraries():
        from draftwood.cli.chat_commands import converse
        from draftwood.cli.conversation import ask
    if message is None:
        converse(options)
    else:
        ask(options, message)
