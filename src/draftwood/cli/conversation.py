"""One answer, or a chat on a terminal or from a pipe: turns, commands and answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, final

import click

from draftwood.api import Pair
from draftwood.cli.console import check_unicode
from draftwood.cli.settings import ChatOptions, Opened, Settings
from draftwood.cli.show import Painter, Screen
from draftwood.cli.single import OneText, write_one
from draftwood.core.errors import CacheError, ConfigError, DraftwoodError
from draftwood.core.limits import FinishReason
from draftwood.core.rounds import Stats
from draftwood.engine.requests import Request

_PROMPT = "> "
_COMMANDS = {
    "/exit": "end the chat (as Ctrl-D)",
    "/reset": "forget all messages but the system prompt",
    "/system": "show the system prompt; /system TEXT replaces it",
    "/help": "show these commands",
}


def ask(settings: Settings, options: ChatOptions, message: str) -> None:
    """Answer a message and print the answer, as ``draftwood generate`` does for one prompt."""
    check_unicode("the message", message)
    if not message.strip():
        raise ConfigError("the message is empty: write one, or leave it out to talk line by line")
    chat = Conversation(settings, options, terminal=False)
    request = chat.request([{"role": "user", "content": message}])
    write_one(OneText(opened=chat.opened, request=request, display=settings.display, quiet=options.quiet))


def converse(settings: Settings, options: ChatOptions) -> None:
    """Answer every line of standard input until it ends. On a terminal an error is reported and the chat goes on."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed: run the command on a terminal, or give messages line by line")
    terminal = sys.stdin.isatty()
    chat = Conversation(settings, options, terminal=terminal)
    if terminal and not options.quiet:
        _remark(f"Chat with {settings.models.target}. Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists commands.")
    for line in _typed_lines() if terminal else _piped_lines():
        try:
            if not chat.take(line):
                return
        except DraftwoodError as error:
            if not terminal:
                raise
            advice = "; /reset begins a new chat" if isinstance(error, CacheError) else ""
            click.echo(f"Error: {' '.join(str(error).split())}{advice}", err=True)


def _typed_lines() -> Iterator[str]:
    """Lines from the terminal, with line editing; Ctrl-C begins the line again."""
    with suppress(ImportError):  # a system without it has plain input
        import readline  # noqa: F401  # input uses it once it is imported
    while True:
        try:
            if sys.stdout.isatty():
                yield input(_PROMPT)
                continue
            click.echo(_PROMPT, err=True, nl=False)
            line = sys.stdin.readline()
            if not line:
                return
            yield line.removesuffix("\n")
        except EOFError:
            click.echo(err=True)
            return
        except KeyboardInterrupt:
            click.echo("\nCtrl-D or /exit ends the chat.", err=True)
        except UnicodeDecodeError:
            click.echo("Error: this line is not UTF-8 text", err=True)


def _piped_lines() -> Iterator[str]:
    """Lines of standard input, without their line breaks."""
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="surrogateescape")


@final
class Conversation:
    """The messages of a chat, and the model that answers them; on a terminal, Ctrl-C stops an answer."""

    def __init__(self, settings: Settings, options: ChatOptions, *, terminal: bool) -> None:
        self.opened: Opened[Pair] = settings.open()
        self.opened.session.special_tokens_in_content = options.special_tokens_in_content
        self._settings, self._options = settings, options
        self._terminal = terminal
        self._screen = Screen()
        self._messages: list[dict[str, Any]] = []
        self._system = options.system
        self._check()  # refuses what is no chat model

    def take(self, line: str) -> bool:
        """Answer a line or do what a command says; returns whether the chat goes on. Blank lines are skipped."""
        if line.startswith("/"):
            return self._run_command(line)
        if line.strip():
            self._answer(line)
        return True

    def _run_command(self, line: str) -> bool:
        name, _, rest = line.strip().partition(" ")
        if name not in _COMMANDS:
            raise ConfigError(f"there is no command {name}: /help lists them; begin the line with a blank to send it")
        if name == "/help":
            click.echo("\n".join(f"{name:8} {what}" for name, what in _COMMANDS.items()), err=True)
        elif name == "/reset":
            self._messages.clear()
        elif name == "/system" and rest.strip():
            self._replace_system(rest.strip())
        elif name == "/system":
            click.echo("no system prompt of your own" if self._system is None else self._system, err=True)
        return name != "/exit"

    def _replace_system(self, text: str) -> None:
        earlier, self._system = self._system, text
        try:
            self._check()
        except DraftwoodError:
            self._system = earlier
            raise

    def _check(self) -> None:
        self.request([{"role": "user", "content": "Hi"}])

    def request(self, messages: Sequence[dict[str, Any]]) -> Request:
        """The request of an answer to these messages, with the system prompt before them."""
        pair, settings = self.opened.session, self._settings
        limits = settings.limits_from(pair.chat_limits)
        whole = [*([] if self._system is None else [{"role": "system", "content": self._system}]), *messages]
        return pair.chat_request(whole, limits, settings.seed, chat_template_kwargs=self._options.variables)

    def _answer(self, line: str) -> None:
        """Write the answer to a message. The message and what was written of the answer join the chat.

        On a terminal, Ctrl-C ends the answer.
        """
        check_unicode("this line", line)
        message = {"role": "user", "content": line}
        request = self.request([*self._messages, message])
        tokenizer, shows = self.opened.session.tokenizer, self._settings.display.show
        painter = Painter(self._screen, tokenizer, request.prompt) if shows else None
        text, reason = "", None
        rounds = self.opened.decoder.stream([request], self.opened.sampling, reuse=True)
        try:
            with closing(rounds):
                for [piece] in rounds:
                    text, reason = text + piece.text, piece.finish_reason
                    if painter is not None:
                        painter.take(piece)
                    else:
                        self._screen.write(piece.text)
        except KeyboardInterrupt:
            if not self._terminal:
                raise
        self._screen.write("\n")
        if text or reason is not None:
            self._messages += [message, {"role": "assistant", "content": text}]
        if not self._options.quiet:
            _remark(self._figures(reason, request.seed))

    def _figures(self, reason: FinishReason | None, seed: int) -> str:
        """Those of the last answer: its speed, its end if it is not the model's own, and the seed of drawn tokens."""
        [stats] = self.opened.decoder.stats or [Stats()]
        seconds, tokens = stats.total_seconds, stats.new_tokens
        parts = [f"{tokens} tokens", f"{tokens / seconds if seconds else 0.0:.1f} tokens/s"]
        parts.append(f"{tokens / max(1, stats.rounds):.2f} tokens per pass")
        if reason != "stop":
            parts.append("stopped" if reason is None else "ended at the length limit")
        if not self.opened.sampling.greedy:
            parts.append(f"seed {seed}")
        return ", ".join(parts)


def _remark(text: str) -> None:
    """A dim line on standard error."""
    click.echo(click.style(text, dim=True), err=True)
