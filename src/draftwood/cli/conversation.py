"""A chat: its messages, its settings and the model that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, final

import click

from draftwood.api import Pair
from draftwood.cli.chat_file import keep_chat, read_chat, write_chat
from draftwood.cli.console import check_unicode
from draftwood.cli.options import pick
from draftwood.cli.results import slowed
from draftwood.cli.settings import TEXT_SECTIONS, ChatOptions, Opened, Settings
from draftwood.cli.show import Painter, Screen
from draftwood.cli.single import write_one
from draftwood.core.errors import ConfigError
from draftwood.core.limits import FinishReason
from draftwood.core.rounds import Stats
from draftwood.core.settings import MAX_SEED
from draftwood.engine.arguments import draft_ids
from draftwood.engine.requests import Request
from draftwood.hardware.cores import CoreMeter

_FIXED = {"target", "json", "compare", "system", "resume", *(f.name for cls in TEXT_SECTIONS["Models"] for f in fields(cls))}
"""Options that a chat keeps, or has a command of its own for."""


def ask(given: Mapping[str, Any], message: str) -> None:
    """Answer a message and print the answer, as ``draftwood generate`` does for one prompt."""
    chat = Conversation(given)
    messages = [*chat.messages, _user(message)]
    result = write_one(chat.opened, chat.request(messages), chat.settings.display, quiet=chat.options.quiet)
    if chat.file is not None:
        chat.messages = [*messages, _assistant(result.text)]
        chat.keep()


def _user(text: str) -> dict[str, Any]:
    check_unicode("this message", text)
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@final
class Conversation:
    """A chat and the model that answers.

    Args:
        given: the options that were given in the call of the command.

    Attributes:
        given: these options, with what was changed since.
        options, settings: those of the chat.
        opened: the models, and how they write.
        messages: the system prompt, if it is the user's own, and all that was said.
        file: where the chat is kept after every answer; None for :func:`draftwood.cli.chat_file.last_chat`.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._ctx = click.get_current_context()
        self._choices = {p.name: p for p in self._ctx.command.params if isinstance(p, click.Option) and p.name}
        self._take(given)
        self._screen = Screen()
        self.messages: list[dict[str, Any]] = []
        self.file: Path | None = None
        self._tries = 0  # of the last message, beyond the first
        if self.options.resume is not None:
            self.load(self.options.resume)
        self.replace_system(self.options.system or self.system)  # refuses what is no chat model

    def _take(self, given: Mapping[str, Any], session: Pair | None = None) -> None:
        """Take options, with models that are loaded already if there are any; nothing changes where one is refused."""
        options, settings = pick(ChatOptions, given), Settings.of(given)
        opened: Opened[Pair] = settings.open() if session is None else settings.opened(session)
        settings.limits_from(opened.session.chat_limits)
        opened.session.special_tokens_in_content = options.special_tokens_in_content
        self.given, self.options, self.settings, self.opened = given, options, settings, opened

    @property
    def system(self) -> str | None:
        """The user's own system prompt, if there is one."""
        return str(self.messages[0]["content"]) if self.messages and self.messages[0]["role"] == "system" else None

    @property
    def resumed(self) -> str:
        """What was loaded, in a line."""
        return f"{len(self.messages)} messages came from {self.file}, and further ones will be there"

    def values(self) -> dict[str, Any]:
        """The settings that can be changed, and their present values: those that were given, and the model's own."""
        opened, limits = self.opened, self.settings.limits_from(self.opened.session.chat_limits)
        parts = {**vars(opened.method), **vars(opened.sampling), **vars(limits)}
        unset = {name: option.get_default(self._ctx) for name, option in self._choices.items()}
        present = {**unset, **self.given, **parts, "grammar": self.given.get("grammar")}  # which is a file
        return {name: present[name] for name in unset if name not in _FIXED}

    def change(self, name: str, text: str) -> None:
        """Change a setting to the value of a text, or to what it is where it is not given (``default``).

        Raises:
            ConfigError: a value that the command line refuses too; then nothing changes.
        """
        given, option = {other: value for other, value in self.given.items() if other != name}, self._choices[name]
        try:
            if text != "default":
                given[name] = option.process_value(self._ctx, (text,) if option.multiple else text)
        except click.UsageError as error:
            raise ConfigError(f"{name} is {text!r}: {error.message}") from error
        self._take(given, self.opened.session)

    def say(self, text: str) -> None:
        """Answer a message. The message and what was written of the answer join the chat."""
        self._tries = 0
        self._answer([*self.messages, _user(text)])

    def retry(self) -> None:
        """Answer the last message again; a given seed counts up.

        Raises:
            ConfigError: there is none.
        """
        last = max((i for i, message in enumerate(self.messages) if message["role"] == "user"), default=None)
        if last is None:
            raise ConfigError("there is no message to answer again: write one")
        self._tries += 1
        self._answer(self.messages[: last + 1])

    def reset(self) -> None:
        """Forget all messages but the system prompt. The file of the chat so far stays as it is."""
        self.messages, self.file = self.messages[: self.system is not None], None

    def replace_system(self, text: str | None) -> None:
        """Replace the system prompt; None takes it away."""
        system = [] if text is None else [{"role": "system", "content": text}]
        self._go_on_from([*system, *self.messages[self.system is not None :]])

    def load(self, path: Path) -> None:
        """Go on with the chat in a file, and keep it there.

        Raises:
            ConfigError: a file without messages that the model can read.
        """
        self._go_on_from(read_chat(path))
        self.file = path

    def save(self, path: Path) -> None:
        """Write the chat into a file, now and after every answer."""
        write_chat(path, self.messages)
        self.file = path

    def keep(self) -> None:
        """Write the chat where it is kept."""
        if self.file is None:
            keep_chat(self.messages)
        else:
            write_chat(self.file, self.messages)

    def _go_on_from(self, messages: list[dict[str, Any]]) -> None:
        """Begin with these messages, if the model can read them and another one."""
        ends = bool(messages) and messages[-1].get("role") == "user"
        self.request(messages if ends else [*messages, _user("Hi")])
        self.messages = messages

    def request(self, messages: Sequence[dict[str, Any]]) -> Request:
        """The request of an answer to these messages."""
        pair, settings = self.opened.session, self.settings
        limits = settings.limits_from(pair.chat_limits)
        seed = None if settings.seed is None else (settings.seed + self._tries) % (MAX_SEED + 1)
        request = pair.chat_request(messages, limits, seed, chat_template_kwargs=self.options.variables)
        return replace(request, draft_text=draft_ids(pair.tokenizer, settings.drafts.text, limits))

    def _answer(self, messages: list[dict[str, Any]]) -> None:
        """Write the answer to the last message, after which the chat is these messages and what was written of the answer.

        Ctrl-C ends the answer.
        """
        request = self.request(messages)
        tokenizer, show = self.opened.session.tokenizer, self.settings.display.show
        painter = Painter(self._screen, tokenizer, request.prompt, marks=show)
        text, reason, meter = "", None, CoreMeter()
        rounds = self.opened.decoder.stream([request], self.opened.sampling, reuse=True)
        with suppress(KeyboardInterrupt), closing(rounds):
            for [piece] in rounds:
                text, reason = text + piece.text, piece.finish_reason
                painter.take(piece)
        self._screen.write("\n")
        if not self.options.quiet:
            remark(self._figures(reason, request.seed, meter))
        if text or reason is not None:
            self.messages = [*messages, _assistant(text)]
            self.keep()

    def _figures(self, reason: FinishReason | None, seed: int, meter: CoreMeter) -> str:
        """Those of the last answer: its speed, its end if it is not the model's own, the seed of drawn tokens, and what made
        it slow."""
        [stats] = self.opened.decoder.stats or [Stats()]
        seconds, tokens = stats.total_seconds, stats.new_tokens
        parts = [f"{tokens} tokens", f"{tokens / seconds if seconds else 0.0:.1f} tokens/s"]
        parts.append(f"{tokens / max(1, stats.rounds):.2f} tokens per pass")
        if reason != "stop":
            parts.append("stopped" if reason is None else "ended at the length limit")
        if not self.opened.sampling.greedy:
            parts.append(f"seed {seed}")
        return "; ".join(part for part in (", ".join(parts), slowed(stats, meter)) if part)


def remark(text: str) -> None:
    """A dim line on standard error."""
    click.echo(click.style(text, dim=True), err=True)
