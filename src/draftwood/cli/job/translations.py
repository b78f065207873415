"""The file of translations: complete or not there, and safe against being stopped."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from draftwood.cli.console import standard_output
from draftwood.cli.job.journal import Journal, check_output, line_of
from draftwood.cli.job.lines import Line
from draftwood.cli.job.resume import difference
from draftwood.core.errors import ConfigError
from draftwood.tune.documents import replace_file

_KIND = "a translation that 'draftwood translate' keeps"
_PARTIAL = ".partial"


@final
class Translations:
    """Where translations go: a file that is written when it is complete, or standard output, in the order of the lines.

    Until then they are kept in FILE.partial, as JSON lines behind one with the settings, from which a stopped run goes on.

    Args:
        path: the file; None for standard output.
        sentences: the input.
        as_json: a JSON object a line, not the bare translation.

    Attributes:
        done: indices that a stopped run has translated.
        complete: the file is there and holds this very translation.

    Raises:
        ConfigError: a file that cannot be written, is there already, or holds something else.
    """

    def __init__(self, path: Path | None, sentences: Sequence[Line], *, as_json: bool) -> None:
        self.path, self._sentences, self._as_json = path, sentences, as_json
        self._records: dict[int, dict[str, Any]] = {}
        self._printed = 0
        self._journal = None if path is None else self._open(path)
        self.done = frozenset(self._records)
        self.complete = path is not None and path.exists()
        if self.complete and not self._is_written():
            raise ConfigError(
                f"output {path} is there already and is left alone: it may hold this translation or something else; name "
                "another --output, or remove the file to translate again"
            )

    def _open(self, path: Path) -> Journal:
        check_output(path)
        journal = Journal(
            path.with_name(path.name + _PARTIAL), good=_is_good, kind=_KIND, beginnings=('{"settings": ', '{"index": ')
        )
        for i, found in enumerate(journal.found[1:]):
            index = found["index"]
            if not 0 <= index < len(self._sentences) or self._sentences[index].source != found["source"]:
                raise ConfigError(
                    f"{journal.path}, line {i + 2}: this translates another sentence than line {index + 1} of the input "
                    f"has; {_advice(journal.path)}"
                )
            self._records[index] = found
        return journal

    def _is_written(self) -> bool:
        """A run was killed after the file was written and before FILE.partial was removed."""
        whole = len(self._records) == len(self._sentences) and self._journal is not None and self._journal.found
        return bool(whole) and self.path is not None and self.path.read_bytes() == self._text().encode("utf-8")

    @property
    def where(self) -> str:
        """Where a stopped run's translations are."""
        return "" if self._journal is None else str(self._journal.path)

    @property
    def count(self) -> int:
        """Lines that are done, empty ones and errors among them."""
        return self._printed if self._journal is None else len(self._records)

    @property
    def errors(self) -> int:
        """Lines that could not be translated."""
        return sum("error" in record for record in self._records.values())

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Note the settings that the translations depend on, or compare them with those of the stopped run.

        Raises:
            ConfigError: they have changed.
        """
        if self._journal is None:
            return
        if not self._journal.found:
            self._journal.append([{"settings": dict(settings)}])
            return
        if unlike := difference(self._journal.found[0]["settings"], settings):
            raise ConfigError(
                f"{self.where} was begun with {unlike}: give the same options as before, or {_advice(self._journal.path)}"
            )

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take what became of some sentences; in a file it is on the disk when this returns."""
        new = [dict(record) for record in records]
        self._records |= {record["index"]: record for record in new}
        if self._journal is not None:
            self._journal.append(new)
            return
        with standard_output():
            while self._printed in self._records:
                sys.stdout.write(self._line(self._records[self._printed]))
                self._printed += 1
            sys.stdout.flush()

    def finish(self) -> None:
        """Write the file, now that all sentences are done, and remove FILE.partial.

        Raises:
            ConfigError: meanwhile somebody else has written the file.
        """
        if self._journal is None or self.path is None:
            return
        if not self.complete:
            if self.path.exists():
                raise ConfigError(
                    f"output {self.path} has come into being meanwhile and is left alone; the translations are in "
                    f"{self.where}: remove the output, and the same command writes it"
                )
            replace_file(self.path, self._text())
        self._journal.path.unlink()

    def _text(self) -> str:
        return "".join(self._line(self._records[sentence.index]) for sentence in self._sentences)

    def _line(self, record: dict[str, Any]) -> str:
        if self._as_json:
            return line_of(record)
        return re.sub(r"[\r\n]+", " ", record.get("text", "")) + "\n"


def _advice(path: Path) -> str:
    return f"name another --output, or remove {path.name} to start again"


def _is_good(index: int, found: dict[str, Any]) -> bool:
    if index == 0:
        return isinstance(found.get("settings"), dict)
    return type(found.get("index")) is int and isinstance(found.get("source"), str)
