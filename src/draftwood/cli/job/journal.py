"""A file of JSON lines. It grows batch by batch, and the next run resumes a stopped one."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from draftwood.core.checks import is_unicode
from draftwood.core.errors import ConfigError, named


@final
class Journal:
    """Objects in a file, one per line. They are on disk as soon as they are written.

    Args:
        path: the file, which may hold lines of an earlier run.
        good: whether the object in a line, numbered from 0, is valid.
        kind: the noun for a line in errors.
        beginnings: the possible first characters of a line, to recognise half a line of a killed run.

    Attributes:
        found: the objects of the earlier run.
        written: the number of objects that this run has added.

    Raises:
        ConfigError: the file cannot be written, or holds something else.
    """

    def __init__(
        self, path: Path, *, good: Callable[[int, dict[str, Any]], bool], kind: str, beginnings: tuple[str, ...]
    ) -> None:
        self.path = path
        self.found: list[dict[str, Any]] = []
        self.written = 0
        self._good, self._kind, self._beginnings = good, kind, beginnings
        self._cut_at: int | None = None  # a half-written line starts at this byte
        check_output(path)
        if path.exists():
            self._read()

    def _read(self) -> None:
        *whole, rest = self.path.read_bytes().split(b"\n")
        self.found = [self._parse(i, line) for i, line in enumerate(whole)]
        if not rest:
            return
        begins = (text.encode() for text in self._beginnings)
        if not any(text.startswith(rest[: len(text)]) for text in begins):  # a killed run may leave half a line
            raise self._foreign(len(whole))
        self._cut_at = sum(len(line) + 1 for line in whole)

    def _parse(self, index: int, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            raise self._foreign(index) from None
        if not isinstance(found, dict) or not self._good(index, found):
            raise self._foreign(index)
        return found

    def _foreign(self, index: int) -> ConfigError:
        return ConfigError(
            f"{self.path}, line {index + 1}: this is not {self._kind}, so the file is left unchanged; name another "
            "--output, or remove the file"
        )

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Append lines. They are on disk when this returns; Ctrl-C waits until then."""
        lines = [line_of(found) for found in objects]
        with _uninterrupted(), named(self.path):
            self._append("".join(lines).encode("utf-8"))
            self.written += len(lines)

    def _append(self, data: bytes) -> None:
        if self._cut_at is not None:
            os.truncate(self.path, self._cut_at)
            self._cut_at = None
        with self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def line_of(found: Mapping[str, Any]) -> str:
    """An object as a line. Half a surrogate pair, which UTF-8 cannot encode, is escaped."""
    text = json.dumps(dict(found), ensure_ascii=False)
    return (text if is_unicode(text) else json.dumps(dict(found))) + "\n"


def check_output(path: Path) -> None:
    """Check beforehand that a file can be written.

    Raises:
        ConfigError: it cannot be written.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"output folder {path.parent} does not exist: create it first, or name another --output")
    if path.exists() and not path.is_file():
        raise ConfigError(f"output {path} is not a regular file: name one, or leave --output out for standard output")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"output {path} cannot be written: permission denied; name another --output")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until a short block is done."""
    if threading.current_thread() is not threading.main_thread():  # signals arrive only there
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
