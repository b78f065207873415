"""A chat on a terminal, and its commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from draftwood.cli.chat_file import last_chat
from draftwood.cli.conversation import Conversation, remark
from draftwood.core.errors import CacheError, ConfigError, DraftwoodError

_NAME = re.compile(r"/[a-z?]+(?=\s|$)")


class Command(NamedTuple):
    """What a command takes, what it does, and how: with the rest of its line."""

    takes: str
    does: str
    run: Callable[[Conversation, str], object]


def converse(given: Mapping[str, Any]) -> None:
    """Answer what is typed until the input ends. An error is reported, and the chat goes on."""
    from draftwood.cli.keyboard import typed

    chat, begun = Conversation(given), "Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists commands."
    if not chat.options.quiet:
        remark(f"Chat with {given['target']}. {begun}")
    if chat.file is not None:
        click.echo(chat.resumed, err=True)
    for text in typed([message["content"] for message in chat.messages if message["role"] == "user"]):
        try:
            if not _take(chat, text):
                break
        except KeyboardInterrupt:
            continue
        except DraftwoodError as error:
            advice = "; /reset begins a new chat" if isinstance(error, CacheError) else ""
            click.echo(f"Error: {' '.join(str(error).split())}{advice}", err=True)
    if chat.messages and chat.file is None and not chat.options.quiet and last_chat().is_file():
        remark(f"Until the next chat, this one goes on with: draftwood chat --resume {last_chat()}")


def _take(chat: Conversation, text: str) -> bool:
    """Answer a message, or do what a command says; returns whether the chat goes on. Blank messages are skipped.

    A text of several lines is a command only if its first word is the name of one.

    Raises:
        ConfigError: an unknown command, or what the command refuses.
    """
    text = text.strip() if text.startswith("/") else text
    name, rest = _parted(text)
    if name is not None:
        COMMANDS[name].run(chat, rest)
        return name != "/bye"
    if text.strip():
        chat.say(text)
    return True


def _parted(text: str) -> tuple[str | None, str]:
    """The name of the command that a text begins with, and the rest; None for a message."""
    if (found := _NAME.match(text)) is None:
        return None, text
    name = _ALIASES.get(found[0], found[0])
    if name in COMMANDS:
        return name, text[found.end() :].strip()
    if "\n" in text:
        return None, text
    near = get_close_matches(name, COMMANDS, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"there is no command {name}: {meant}/help lists them; begin the line with a blank to send it")


def _set(chat: Conversation, rest: str) -> None:
    name, _, value = rest.partition(" ")
    name = name.lstrip("-").replace("-", "_")
    values = chat.values()
    if name and name not in values:
        near = get_close_matches(name, values, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"there is no setting {name}: {meant}/set lists them")
    if value.strip():
        chat.change(name, value.strip())
        values = chat.values()
    for one in [name] if name else values:
        given = "" if one in chat.given else "  (default)"
        click.echo(f"{one:<26}{_shown(values[one])}{given}", err=True)


def _shown(value: object) -> str:
    """A setting as ``/set`` takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None or value == () else " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _system(chat: Conversation, rest: str) -> None:
    if rest:
        chat.replace_system(rest)
    else:
        click.echo("no system prompt of your own" if chat.system is None else chat.system, err=True)


def _save(chat: Conversation, rest: str) -> None:
    chat.save(_file("/save", rest))
    click.echo(f"{len(chat.messages)} messages are in {chat.file}, and further ones will be", err=True)


def _load(chat: Conversation, rest: str) -> None:
    chat.load(_file("/load", rest))
    click.echo(chat.resumed, err=True)


def _file(command: str, rest: str) -> Path:
    if not rest:
        raise ConfigError(f"{command} needs the name of a file: {command} chat.json")
    return Path(rest).expanduser()


def _help(chat: Conversation, rest: str) -> None:
    for name, (takes, does, _) in COMMANDS.items():
        click.echo(f"{f'{name} {takes}':<20} {does}", err=True)
    click.echo("A backslash before Enter, or Alt-Enter, begins a new line.", err=True)


COMMANDS: Final[Mapping[str, Command]] = {
    "/set": Command("[NAME [VALUE]]", "show the settings, or change one; the value 'default' takes that back", _set),
    "/system": Command("[TEXT]", "show the system prompt, or replace it", _system),
    "/retry": Command("", "answer the last message again, with another seed", lambda chat, rest: chat.retry()),
    "/save": Command("FILE", "write the chat into a file, now and after every answer", _save),
    "/load": Command("FILE", "go on with the chat in a file, and keep it there", _load),
    "/reset": Command("", "forget all messages but the system prompt", lambda chat, rest: chat.reset()),
    "/help": Command("", "show these commands", _help),
    "/bye": Command("", "end the chat (as Ctrl-D)", lambda chat, rest: None),
}
_ALIASES: Final = {"/exit": "/bye", "/quit": "/bye", "/clear": "/reset", "/?": "/help"}
"""Names in other programs -> ours."""
