"""One answer, or a chat on a terminal or from a pipe: turns, commands and answers."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, final

import click

from draftwood.api import Pair
from draftwood.cli.chat_settings import ChatDisplay, before
from draftwood.cli.settings import Opened, Settings
from draftwood.cli.show import Painter, Screen
from draftwood.cli.single import OneText, write_one
from draftwood.core.checks import is_unicode
from draftwood.core.errors import CacheError, ConfigError, DraftwoodError
from draftwood.core.rounds import Stats
from draftwood.engine.output import FinishReason
from draftwood.engine.requests import Request

_PROMPT = "> "
_COMMANDS = {
    "/exit": "end the chat (as Ctrl-D)",
    "/reset": "forget all messages but the system prompt",
    "/system": "show the system prompt; /system TEXT replaces it",
    "/help": "show these commands",
}


def ask(settings: Settings, display: ChatDisplay, message: str) -> None:
    """Answer a message and print the answer, as ``draftwood generate`` does for one prompt.

    Raises:
        ConfigError: a blank message, or one that is no Unicode text.
        DraftwoodError: what :meth:`draftwood.Pair.chat` raises.
    """
    if not is_unicode(message):
        raise ConfigError("the message is not UTF-8 text: convert it, for example with iconv -t utf-8")
    if not message.strip():
        raise ConfigError("the message is empty: write one, or leave it out to talk line by line")
    opened: Opened[Pair] = settings.open()
    pair = opened.session
    pair.special_tokens_in_content = display.special_tokens_in_content
    messages = [*before(display.system), {"role": "user", "content": message}]
    request = pair.chat_request(
        messages, settings.limits_from(pair.chat_limits), settings.seed, chat_template_kwargs=display.variables
    )
    write_one(OneText(opened=opened, request=request, display=settings.display, quiet=display.quiet))


def converse(settings: Settings, display: ChatDisplay) -> None:
    """Answer every line of standard input until it ends.

    On a terminal an error is reported and the chat goes on.

    Raises:
        ConfigError: standard input is closed; from a pipe, a line that cannot be answered.
        DraftwoodError: from a pipe, what :meth:`draftwood.Pair.chat` raises.
    """
    if sys.stdin is None:
        raise ConfigError("standard input is closed: run the command on a terminal, or give messages line by line")
    terminal = sys.stdin.isatty()
    chat = Conversation(settings, display, terminal=terminal)
    if terminal and not display.quiet:
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
    """The messages of a chat, and the model that answers them.

    Args:
        settings: models, method, sampling and limits.
        display: the system prompt, values for the chat template, and what is shown of an answer.
        terminal: messages come from a terminal, where Ctrl-C stops an answer.
    """

    def __init__(self, settings: Settings, display: ChatDisplay, *, terminal: bool) -> None:
        opened: Opened[Pair] = settings.open()
        self._pair, self._decoder, self._sampling, _ = opened
        self._pair.special_tokens_in_content = display.special_tokens_in_content
        self._limits = settings.limits_from(self._pair.chat_limits)
        self._seed = settings.seed
        self._display = display
        self._terminal = terminal
        self._screen = Screen()
        self._messages: list[dict[str, Any]] = []
        self._system = display.system
        self._check()  # refuses what is no chat model

    def take(self, line: str) -> bool:
        """Answer a line or do what a command says; returns whether the chat goes on. Blank lines are skipped.

        Raises:
            ConfigError: an unknown command, or what :meth:`draftwood.Pair.chat` raises; the chat is as before then.
            DraftwoodError: what :meth:`draftwood.Pair.chat` raises.
        """
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
        self._request([{"role": "user", "content": "Hi"}])

    def _request(self, messages: Sequence[dict[str, Any]]) -> Request:
        whole = [*before(self._system), *messages]
        return self._pair.chat_request(whole, self._limits, self._seed, chat_template_kwargs=self._display.variables)

    def _answer(self, line: str) -> None:
        """Write the answer to a message. The message and what was written of the answer join the chat.

        On a terminal, Ctrl-C ends the answer after the present round, and a second one within the round.
        """
        if not is_unicode(line):
            raise ConfigError("this line is not UTF-8 text: convert it, for example with iconv -t utf-8")
        message = {"role": "user", "content": line}
        request = self._request([*self._messages, message])
        painter = Painter(self._screen, self._pair.tokenizer, request.prompt) if self._display.show else None
        text, reason = "", None
        rounds = self._decoder.stream([request], self._sampling, reuse=True)
        with _interrupts(self._terminal) as stopped, closing(rounds):
            try:
                for [piece] in rounds:
                    if painter is not None:
                        painter.take(piece)
                    else:
                        self._screen.write(piece.text)
                    text, reason = text + piece.text, piece.finish_reason
                    if stopped:
                        break
            except KeyboardInterrupt:
                if not self._terminal:
                    raise
        self._screen.write("\n")
        if text or reason is not None:
            self._messages += [message, {"role": "assistant", "content": text}]
        if not self._display.quiet:
            _remark(self._figures(reason, request.seed))

    def _figures(self, reason: FinishReason | None, seed: int) -> str:
        """Those of the last answer: its speed, its end if it is not the model's own, and the seed of drawn tokens."""
        [stats] = self._decoder.stats or [Stats()]
        seconds, tokens = stats.total_seconds, stats.new_tokens
        parts = [f"{tokens} tokens", f"{tokens / seconds if seconds else 0.0:.1f} tokens/s"]
        parts.append(f"{tokens / max(1, stats.rounds):.2f} tokens per pass")
        if reason != "stop":
            parts.append("stopped" if reason is None else "ended at the length limit")
        if not self._sampling.greedy:
            parts.append(f"seed {seed}")
        return ", ".join(parts)


def _remark(text: str) -> None:
    """A dim line on standard error."""
    click.echo(click.style(text, dim=True), err=True)


@contextmanager
def _interrupts(terminal: bool) -> Iterator[list[int]]:
    """A list that is empty until Ctrl-C; the next one raises KeyboardInterrupt. Without a terminal the first one does.

    A round that is completed leaves the models' memory usable for the next answer.
    """
    seen: list[int] = []

    def stop(number: int, _: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    if not terminal:
        yield seen
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
