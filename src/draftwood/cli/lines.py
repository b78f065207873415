"""Text on its way in and out: lines of an input file, what was typed, standard output."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from draftwood.core.errors import ConfigError, named

NOT_UTF8 = "this is not UTF-8 text: convert the file, for example with iconv"
_MARK = b"\xef\xbb\xbf"  # what some editors put in front of UTF-8


def name_of_input(path: Path) -> str:
    """What an input is called in errors."""
    return "standard input" if str(path) == "-" else str(path)


def read_lines(path: Path) -> list[bytes]:
    """All lines of a file without their line feeds, or of standard input if the path is ``-``.

    Not ``splitlines()``: JSON and sentences may hold U+2028 and its like.

    Raises:
        ConfigError: a file that cannot be read.
    """
    try:
        if str(path) == "-" and sys.stdin is None:
            raise ConfigError("the input is -, but standard input is closed: name a file")
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"input file {name_of_input(path)} cannot be read: {error.strerror}") from error
    *lines, last = data.removeprefix(_MARK).split(b"\n")
    return [*lines, last] if last else lines


def report_error(index: int, error: str) -> None:
    """Name a line, numbered from 0, of which nothing can be made."""
    click.echo(f"Line {index + 1}: {error}.", err=True)


def check_two_files(source: Path, output: Path | None) -> None:
    """Refuse to read and to write the same file.

    Raises:
        ConfigError: they are the same.
    """
    if output is not None and output.exists() and source.exists() and output.samefile(source):
        raise ConfigError(f"--input and --output are the same file, {source}: name another --output")


def typed(text: str) -> str:
    """A text from the command line. Under a locale that cannot decode its bytes they are read as UTF-8, if they are that."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


@contextmanager
def standard_output() -> Iterator[None]:
    """Write to standard output; where that fails, what it still holds is dropped, so that nothing fails again at the end.

    Raises:
        OSError: what came; it names standard output.
    """
    try:
        with named("standard output"):
            yield
    except OSError as error:
        if error.errno != errno.EPIPE:  # click sees to a reader that went away
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise
