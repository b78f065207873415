"""The file of answers: grown batch by batch, safe against being stopped, and completed by the next run."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from draftwood.cli.prompts import Line, seed_of
from draftwood.errors import ConfigError

_BEGINNING = '{"index": '


@final
class Answers:
    """JSON lines in a file, or on standard output.

    Args:
        path: the file, which may hold answers of an earlier run; None for standard output.

    Raises:
        ConfigError: a file that cannot be written, or holds something else.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: list[dict[str, Any]] = []
        self.written = 0
        self._cut_at: int | None = None  # a half-written line starts at this byte
        if path is not None:
            self._prepare(path)

    def _prepare(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise ConfigError(f"output folder {path.parent} does not exist: create it first, or name another --output")
        if path.exists() and not path.is_file():
            raise ConfigError(f"output {path} is no regular file: name one, or leave --output out for standard output")
        place = path if path.exists() else path.parent
        if not os.access(place, os.W_OK):
            raise ConfigError(f"output {path} cannot be written: permission denied; name another --output")
        if path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        *whole, rest = path.read_bytes().split(b"\n")
        self.found = [self._parse(path, i, line) for i, line in enumerate(whole)]
        if not rest:
            return
        if not _BEGINNING.encode().startswith(rest[: len(_BEGINNING)]):  # else a killed run left it, and it is done again
            raise self._foreign(path, len(whole))
        self._cut_at = sum(len(line) + 1 for line in whole)

    def _parse(self, path: Path, index: int, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            raise self._foreign(path, index) from None
        kinds = {"index": int, "prompt": str, "text": str, "seed": int}
        if not isinstance(found, dict) or any(type(found.get(key)) is not kind for key, kind in kinds.items()):
            raise self._foreign(path, index)
        return found

    @staticmethod
    def _foreign(path: Path, index: int) -> ConfigError:
        return ConfigError(
            f"{path}, line {index + 1}: this is not an answer of 'draftwood generate', so the file is left alone; name "
            "another --output, or remove the file"
        )

    def first_seed(self, lines: Sequence[Line]) -> int | None:
        """The seed of line 0 in the run that wrote the file, if that can be told."""
        own = {line.index for line in lines if line.seed is not None}
        return next((a["seed"] - a["index"] for a in self.found if a["index"] not in own and a["seed"] >= a["index"]), None)

    def done(self, lines: Sequence[Line], first_seed: int) -> set[int]:
        """Indices answered already.

        Raises:
            ConfigError: the file answers other prompts, or was made with other seeds.
        """
        asked = {line.index: line for line in lines}
        for i, answer in enumerate(self.found):
            line = asked.get(answer["index"])
            advice = "name another --output, or remove the file to start again"
            if line is None or line.prompt != answer["prompt"]:
                raise ConfigError(
                    f"{self.path}, line {i + 1}: this answers another prompt than line {answer['index'] + 1} of the input "
                    f"has; {advice}"
                )
            if answer["seed"] != seed_of(line, first_seed):
                raise ConfigError(
                    f"{self.path}, line {i + 1}: this was made with seed {answer['seed']}, but the line's seed is now "
                    f"{seed_of(line, first_seed)}; give the same --seed as before, or {advice}"
                )
        return {answer["index"] for answer in self.found}

    def write(self, answers: Iterable[dict[str, Any]]) -> None:
        """Append answers; they are on the disk when this returns."""
        lines = [json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers]
        if self.path is None:
            sys.stdout.writelines(lines)
            sys.stdout.flush()
            self.written += len(lines)
            return
        with _uninterrupted():
            self._append(self.path, "".join(lines).encode("utf-8"))
            self.written += len(lines)

    def _append(self, path: Path, data: bytes) -> None:
        if self._cut_at is not None:
            os.truncate(path, self._cut_at)
            self._cut_at = None
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait for a short piece of work."""
    if threading.current_thread() is not threading.main_thread():  # only there do signals arrive
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
