"""``draftwood chat``."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import click

from draftwood.cli.console import check_unicode
from draftwood.cli.options import Changes, Sectioned, Sections, given, pick, section_options
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import TEXT_SECTIONS, DisplayOptions, Settings
from draftwood.core.checks import setting, short_repr
from draftwood.core.errors import ConfigError
from draftwood.loading.names import check_models


@final
@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The system prompt, the chat template, what messages may hold, and the display.

    Raises:
        ConfigError: a system prompt that is no Unicode text, or values that are no JSON object.
    """

    system: str | None = setting(None, "system prompt; default: that of the chat template, if any")
    special_tokens_in_content: bool = setting(False, "names of special tokens in messages become these tokens, not text")
    chat_template_kwargs: str | None = setting(
        None, 'JSON object of values that the chat template reads: {"enable_thinking": false}'
    )
    quiet: bool = setting(False, "write the answers only, without their speed")

    def __post_init__(self) -> None:
        check_unicode("the system prompt", self.system or "")
        _ = self.variables

    @property
    def variables(self) -> dict[str, Any] | None:
        """The values for the chat template; None if none were given."""
        if self.chat_template_kwargs is None:
            return None
        with suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(self.chat_template_kwargs), dict):
                return found
        given = short_repr(self.chat_template_kwargs)
        raise ConfigError(f'chat_template_kwargs is {given}: give a JSON object such as {{"enable_thinking": false}}')


SECTIONS: Sections = {
    **TEXT_SECTIONS,
    "Chat": (ChatOptions, DisplayOptions),
}
CHANGES: Changes = {
    "target": {"default": "smollm2", "help": "chat model that answers"},
    "max_new_tokens": {
        "default": None, "help": "the most tokens of an answer; default: the model's own, else 1024"
    },
    "compare": {"help": "with a MESSAGE: answer by plain decoding too, and compare"},
}  # fmt: skip


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
    with loading_libraries():
        from draftwood.cli.conversation import ask, converse
    if message is None:
        converse(settings, chat)
    else:
        ask(settings, chat, message)
