"""Lines of an input file, and checks of the input and the output."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from draftwood.core.errors import ConfigError
from draftwood.core.files import check_readable, check_writable
from draftwood.core.seeds import seed_at
from draftwood.core.settings import MAX_SEED

NOT_UTF8 = "this is not UTF-8 text: convert the file, for example with iconv"
_MARK = b"\xef\xbb\xbf"  # byte order mark, which some editors write


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the input.

    Attributes:
        index: line number, from 0.
        source: the whole line without its end; U+FFFD replaces invalid UTF-8.
        text: the text to continue or to translate.
        seed: the line's own seed.
        carried: keys of the line that are copied to its record.
        error: why the line cannot be used.
    """

    index: int
    source: str
    text: str = ""
    seed: int | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def seed_after(self, first: int) -> int:
        """The line's own seed, else the first line's plus the index."""
        seed = self.seed if self.seed is not None else seed_at(first, self.index)
        if seed > MAX_SEED:
            raise ConfigError(f"seed {first} plus line number {self.index} is above {MAX_SEED}: give a smaller --seed")
        return seed


def name_of_input(path: Path) -> str:
    """The name of an input in messages."""
    return "standard input" if str(path) == "-" else str(path)


def read_lines(path: Path) -> list[bytes]:
    """All lines of a file without their line feeds, or of standard input if the path is ``-``.

    Not ``splitlines()``: JSON and sentences may hold separators such as U+2028.
    """
    try:
        if str(path) == "-" and sys.stdin is None:
            raise ConfigError("the input is -, but standard input is closed: name a file")
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"input file {name_of_input(path)} cannot be read: {error.strerror}") from error
    *lines, last = data.removeprefix(_MARK).split(b"\n")
    return [*lines, last] if last else lines


def read_sentences(path: Path) -> list[Line]:
    """A text per line of a file, or of standard input if the path is ``-``."""
    return [_sentence(i, line.removesuffix(b"\r")) for i, line in enumerate(read_lines(path))]


def _sentence(index: int, data: bytes) -> Line:
    text = data.decode("utf-8", errors="replace")
    return Line(index=index, source=text, text=text, error=None if text.encode() == data else NOT_UTF8)


def check_files(source: Path | None, output: Path | None) -> None:
    """Refuse files that cannot be read and written, before models are loaded; ``-`` is standard input."""
    if source is None:
        return
    if str(source) != "-":
        check_readable(source)
    if output is None:
        return
    check_output(output)
    if output.exists() and source.exists() and output.samefile(source):
        raise ConfigError(f"--input and --output are the same file, {source}: name another --output")


def check_output(path: Path) -> None:
    """Raise a ConfigError for a file that cannot be written, before the work begins."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"output {path} is not a regular file: name one, or leave --output out for standard output")
    check_writable(path, "--output")
    if path.exists() and not os.access(path, os.W_OK):  # records are appended
        raise ConfigError(f"output {path} cannot be written: permission denied; name another --output")
