"""Messages that are typed on a terminal: line editing, pasted texts of several lines, and earlier messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.defaults import create_output

_PROMPT = "> "


def typed(earlier: Sequence[str]) -> Iterator[str]:
    """Messages until the end of input. Ctrl-C begins the message again; the arrow up brings it back.

    Enter ends a message. A backslash before it, or Alt, begins a new line instead, and a pasted text stays as it is.

    Args:
        earlier: messages that the arrow up brings back.
    """
    history = InMemoryHistory(earlier)
    output = create_output(always_prefer_tty=True)  # standard error, where standard output is a file
    session: PromptSession[str] = PromptSession(
        multiline=True, prompt_continuation="  ", key_bindings=_keys(), history=history, output=output,
        reserve_space_for_menu=0,
    )  # fmt: skip
    while True:
        try:
            yield session.prompt(_PROMPT).rstrip("\n")
        except EOFError:
            return
        except KeyboardInterrupt:
            if text := session.default_buffer.text:
                history.append_string(text)
            click.echo("Ctrl-D or /bye ends the chat.", err=True)


def _keys() -> KeyBindings:
    keys = KeyBindings()
    keys.add("enter")(_enter)
    keys.add("escape", "enter")(_new_line)
    return keys


def _enter(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if buffer.document.current_line.endswith("\\") and buffer.document.is_cursor_at_the_end_of_line:
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")
