"""The file of translations. It exists only when complete, and the next run resumes a stopped one."""

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
from draftwood.core.files import replace_file

_KIND = "a translation that 'draftwood translate' keeps"
_PARTIAL = ".partial"


@final
class Translations:
    """A sink of translations in the order of the lines: a file that is written when complete, or standard output.

    Until then FILE.partial holds a line with the settings and the translations as JSON lines. A stopped run resumes there.

    Args:
        path: the file; None for standard output.
        sentences: the input.
        as_json: a JSON object per line instead of the bare translation.

    Attributes:
        done: indices that a stopped run has translated.
        complete: whether the file exists and holds this translation.

    Raises:
        ConfigError: the file cannot be written, or holds something else.
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
                f"output {path} exists and is left unchanged, because it may hold something else; name "
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
        """Whether a run was killed after writing the file and before removing FILE.partial."""
        whole = len(self._records) == len(self._sentences) and self._journal is not None and self._journal.found
        return bool(whole) and self.path is not None and self.path.read_bytes() == self._text().encode("utf-8")

    @property
    def where(self) -> str:
        return "" if self._journal is None else str(self._journal.path)

    @property
    def count(self) -> int:
        return self._printed if self._journal is None else len(self._records)

    @property
    def errors(self) -> int:
        return sum("error" in record for record in self._records.values())

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Store the settings of the translations, or compare them with those of the stopped run.

        Raises:
            ConfigError: they differ.
        """
        if self._journal is None:
            return
        if not self._journal.found:
            self._journal.append([{"settings": dict(settings)}])
            return
        if unlike := difference(self._journal.found[0]["settings"], settings):
            raise ConfigError(
                f"{self.where} was started with {unlike}: give the same options as before, or {_advice(self._journal.path)}"
            )

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
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
        """Write the file and remove FILE.partial. All sentences are done.

        Raises:
            ConfigError: another process has written the file in the meantime.
        """
        if self._journal is None or self.path is None:
            return
        if not self.complete:
            if self.path.exists():
                raise ConfigError(
                    f"output {self.path} was created by another process and is left unchanged; the translations are in "
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
