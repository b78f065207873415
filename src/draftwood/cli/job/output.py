"""The output of a job: JSON lines that grow batch by batch. The next run resumes a stopped one."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

from draftwood.cli.console import standard_output
from draftwood.cli.group import Interrupted
from draftwood.cli.job.lines import Line, check_output
from draftwood.cli.job.resume import Facts, difference, is_record, unlike
from draftwood.core.checks import is_unicode
from draftwood.core.errors import ConfigError, named
from draftwood.core.files import replace_file

_PARTIAL: Final = ".partial"
_BEGINNING: Final = b'{"index": '
"""The first bytes of a line, which tell half a line of a killed run from another file."""


@final
class Output:
    """The records of a job, in a file or on standard output. Those in a file are on disk as soon as they are written.

    Args:
        path: the file, which may hold records of an earlier run; None for standard output.
        lines: the input.
        whole: the file is written when all lines are done, as for translations. Until then FILE.partial holds the records.
            Otherwise the file grows line by line. Every record holds its settings.
        as_json: a JSON object per line; otherwise the bare text.

    Attributes:
        where: the file of the records, from which a stopped run is resumed; None for standard output.
        done: indices of the finished lines, with those of earlier runs.
        errors: the number of finished lines without a text.

    Raises:
        ConfigError: the file cannot be written, or holds something else.
    """

    def __init__(self, path: Path | None, lines: Sequence[Line], *, whole: bool = False, as_json: bool = True) -> None:
        self.path, self.whole, self._lines, self._as_json = path, whole, lines, as_json
        self.where = path.with_name(path.name + _PARTIAL) if path is not None and whole else path
        self.done: set[int] = set()
        self.errors = 0
        self._texts: dict[int, str] = {}  # of a whole output
        self._found: list[dict[str, Any]] = []  # by the earlier run
        self._cut_at: int | None = None  # a half-written line starts at this byte
        if self.where is not None:
            check_output(self.where)
            if self.where.exists():
                self._read(self.where)
        if whole and path is not None and path.exists():
            raise ConfigError(
                f"output {path} exists and is left unchanged, because it may hold something else; name another --output, or "
                "remove the file to translate again"
            )

    def _read(self, where: Path) -> None:
        """Take the records of the earlier run."""
        *whole, rest = where.read_bytes().split(b"\n")
        self._found = [self._parse(where, number, data) for number, data in enumerate(whole)]
        if rest:
            if not _BEGINNING.startswith(rest[: len(_BEGINNING)]):
                raise self._foreign(where, len(whole))
            self._cut_at = sum(len(data) + 1 for data in whole)
        by_index = {line.index: line for line in self._lines}
        for number, found in enumerate(self._found):
            if why := unlike(found, by_index.get(found["index"]), self._advice(where), whole=self.whole):
                raise ConfigError(f"{where}, line {number + 1}: {why}")
        self._count(self._found)

    def _parse(self, where: Path, number: int, data: bytes) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            raise self._foreign(where, number) from None
        if not is_record(found, whole=self.whole):
            raise self._foreign(where, number)
        return found

    def _foreign(self, where: Path, number: int) -> ConfigError:
        command = "translate" if self.whole else "generate"
        return ConfigError(
            f"{where}, line {number + 1}: this is no record of 'draftwood {command}', so the file is left unchanged; name "
            "another --output, or remove the file"
        )

    @property
    def first_seed(self) -> int | None:
        """The seed of line 0 in the earlier run, if the file holds it."""
        return self._found[0]["settings"].get("seed") if self._found else None

    def begin(self, settings: Facts) -> None:
        """Compare the settings with those of the earlier run."""
        for i, found in enumerate(self._found):
            if found["settings"] != settings and (differs := difference(found["settings"], settings)):
                assert self.where is not None
                advice = self._advice(self.where)
                raise ConfigError(
                    f"{self.where}, line {i + 1}: this was made with {differs}: give the same options as before, or {advice}"
                )

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records. A file is on disk when this returns."""
        new = list(records)
        if self.where is not None:
            self._count(new)  # first, because Ctrl-C comes as soon as they are on disk
            self._append(self.where, new)
        else:
            with standard_output():
                sys.stdout.writelines(map(self._line, new))
                sys.stdout.flush()
            self._count(new)

    def _append(self, where: Path, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records to a file; Ctrl-C waits until they are on disk."""
        data = "".join(map(_json_line, records)).encode("utf-8")
        with _uninterrupted(), named(where):
            if self._cut_at is not None:
                os.truncate(where, self._cut_at)
                self._cut_at = None
            with where.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

    def interrupted(self, seed: str) -> Interrupted:
        """The end by Ctrl-C; ``seed`` is the seed of the first line in words, empty where nothing is drawn."""
        where = f" in {self.where}; the same command resumes there" if self.where else seed and f"; {seed}"
        return Interrupted(f"{self.finished}{where}")

    @property
    def finished(self) -> str:
        """How much is done, as in "3 of 7 lines are done"."""
        return f"{len(self.done)} of {len(self._lines)} lines are done"

    def finish(self) -> None:
        """Write a whole output and remove FILE.partial. All lines are done."""
        if not self.whole or self.where is None or self.path is None:
            return
        if self.path.exists():
            raise ConfigError(
                f"output {self.path} was created by another process and is left unchanged; the translations are in "
                f"{self.where}: remove the output, and the same command writes it"
            )
        replace_file(self.path, "".join(self._texts[line.index] for line in self._lines))
        self.where.unlink(missing_ok=True)  # there is none of an empty input

    def _count(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self.done.add(record["index"])
            self.errors += "error" in record
            if self.whole and self.where is not None:
                self._texts[record["index"]] = self._line(record)

    def _line(self, record: Mapping[str, Any]) -> str:
        if self.whole:
            record = {name: value for name, value in record.items() if name != "settings"}
        return _json_line(record) if self._as_json else re.sub(r"[\r\n]+", " ", record.get("text", "")) + "\n"

    def _advice(self, where: Path) -> str:
        what = where.name if self.whole else "the file"
        return f"name another --output, or remove {what} to start again"


def _json_line(found: Mapping[str, Any]) -> str:
    """An object as a line. Half a surrogate pair, which UTF-8 cannot encode, is escaped."""
    text = json.dumps(dict(found), ensure_ascii=False)
    return (text if is_unicode(text) else json.dumps(dict(found))) + "\n"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until a short block is done."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
