"""Texts that are Unicode, and text on standard input and output."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from draftwood.core.checks import is_unicode
from draftwood.core.errors import ConfigError, named


def check_unicode(what: str, text: str) -> None:
    """Refuse a text that UTF-8 cannot hold; ``what`` begins the error."""
    if not is_unicode(text):
        raise ConfigError(f"{what} is not UTF-8 text: convert it, for example with iconv -t utf-8")


def text_of(what: str, given: str) -> str:
    """A text from the command line, which is UTF-8; ``-`` is all of standard input without its last line break.

    Args:
        what: a noun for it.
        given: the argument.

    Raises:
        ConfigError: standard input is closed, or the text is not UTF-8.
    """
    if given != "-":
        check_unicode(f"the {what} given", given)
        return given
    if sys.stdin is None:
        raise ConfigError(f"the {what} is -, but standard input is closed: give a text")
    data = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
    check_unicode(f"the {what} on standard input", text := data.decode("utf-8", errors="surrogateescape"))
    return text


def check_standard_output() -> None:
    """Raise a ConfigError if standard output is closed."""
    if sys.stdout is None:
        raise ConfigError("standard output is closed, so nothing can be written to it: send it to a file or a pipe")


@contextmanager
def standard_output() -> Iterator[None]:
    """Write to standard output. After a failure its buffer is dropped, unless its reader has gone, which ends a command.

    Raises:
        ConfigError: standard output is closed.
        OSError: from a full disk and the like; it names standard output.
    """
    check_standard_output()
    try:
        with named("standard output"):
            yield
    except BrokenPipeError:
        raise
    except OSError:
        drop_output()
        raise


def write_line(text: str) -> None:
    """Write a text and a line break; see :func:`standard_output`."""
    with standard_output():
        click.echo(text)


def output_is_closed() -> bool:
    """Whether the reader of standard output has gone."""
    with suppress(AttributeError, OSError):  # output without a descriptor; Windows has no poll
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
        return bool(watched.poll(0))
    return False


def drop_output() -> None:
    """Drop what standard output still holds, so that Python does not fail again at exit."""
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
