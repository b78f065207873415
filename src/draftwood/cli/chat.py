"""``draftwood chat``."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from draftwood.cli.chat_settings import CHANGES, SECTIONS, ChatDisplay
from draftwood.cli.console import typed
from draftwood.cli.grammar_options import with_grammar
from draftwood.cli.options import Sectioned, pick, section_options
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import Settings
from draftwood.core.errors import ConfigError
from draftwood.loading.names import check_models


@click.command(name="chat", cls=Sectioned, sections=SECTIONS, short_help="Talk with a chat model.")
@click.argument("message", required=False)
@section_options(SECTIONS, changes=CHANGES)
@click.pass_context
def command(ctx: click.Context, /, message: str | None, **options: Any) -> None:
    """Talk with a chat model. Only what is new in the chat is read for each answer.

    With a MESSAGE the command answers it and ends. On a terminal, Ctrl-C stops an answer, and Ctrl-D ends the chat. From a
    pipe or a file, every line is a message, and the answers go to standard output. Speeds go to standard error.
    """
    given = frozenset(n for n in options if ctx.get_parameter_source(n) is not ParameterSource.DEFAULT)
    options["stop"] = tuple(map(typed, options["stop"]))
    for name in ("target", "draft", "system"):
        options[name] = None if options[name] is None else typed(options[name])
    display = pick(ChatDisplay, options)
    settings = Settings.of(*with_grammar(options, given))
    if message is None and display.compare:
        raise ConfigError("--compare is for a single answer: give the message as an argument, or leave it out")
    check_models("language", settings.models.target, settings.models.draft)
    if not settings.loading.trust_remote_code:  # whose code may bring a template
        from draftwood.loading.templates import refuse_without_template

        refuse_without_template(options["target"])
    with loading_libraries():
        from draftwood.cli.conversation import ask, converse
    if message is None:
        converse(settings, display)
    else:
        ask(settings, display, typed(message))
