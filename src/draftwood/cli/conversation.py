"""A chat on a terminal or from a pipe: turns, commands and answers."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, final

import click

from draftwood.cli.chat_model import ChatModel
from draftwood.cli.chat_settings import ChatDisplay, before
from draftwood.cli.settings import Settings
from draftwood.cli.show import Screen
from draftwood.core.checks import is_unicode
from draftwood.core.errors import CacheError, ConfigError, DraftwoodError

_PROMPT = "> "
_COMMANDS = {
    "/exit": "end the chat (as Ctrl-D)",
    "/reset": "forget all messages but the system prompt",
    "/system": "show the system prompt; /system TEXT replaces it",
    "/help": "show these commands",
}


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
    model = ChatModel(settings, display)
    chat = Conversation(model, display, terminal=terminal)
    if terminal and not display.quiet:
        _remark(f"Chat with {model.name}. Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists commands.")
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
        model: answers.
        display: the system prompt, and what is written after an answer.
        terminal: messages come from a terminal, where Ctrl-C stops an answer.
    """

    def __init__(self, model: ChatModel, display: ChatDisplay, *, terminal: bool) -> None:
        self._model = model
        self._display = display
        self._terminal = terminal
        self._screen = Screen()
        self._messages: list[dict[str, Any]] = []
        self._system = display.system
        self._model.check([*before(self._system), {"role": "user", "content": "Hi"}])  # refuses what is no chat model

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
            self._model.check([*before(self._system), {"role": "user", "content": "Hi"}])
        except ConfigError:
            self._system = earlier
            raise

    def _answer(self, line: str) -> None:
        """Write the answer to a message. The message and what was written of the answer join the chat."""
        if not is_unicode(line):
            raise ConfigError("this line is not UTF-8 text: convert it, for example with iconv -t utf-8")
        message = {"role": "user", "content": line}
        text = "".join(self._texts([*before(self._system), *self._messages, message]))
        self._screen.write("\n")
        if text or self._model.reason is not None:
            self._messages += [message, {"role": "assistant", "content": text}]
        if not self._display.quiet:
            _remark(self._model.remark)

    def _texts(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """The answer; on a terminal, Ctrl-C ends it after the present round, and a second one within the round."""
        with _interrupts(self._terminal) as stopped, closing(self._model.answer(messages, self._screen)) as texts:
            try:
                for text in texts:
                    yield text
                    if stopped:
                        return
            except KeyboardInterrupt:
                if not self._terminal:
                    raise


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
