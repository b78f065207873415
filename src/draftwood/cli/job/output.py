"""The output of a job. The next run resumes a stopped one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from draftwood.cli.console import standard_output
from draftwood.cli.job.forms import Form
from draftwood.cli.job.journal import Journal, check_output, line_of
from draftwood.cli.job.lines import Line
from draftwood.cli.job.resume import Facts, difference
from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file

_PARTIAL = ".partial"
_GIVEN = "given"


@final
class Output:
    """The records of a job, in a file or on standard output.

    Args:
        path: the file, which may hold records of an earlier run; None for standard output.
        lines: the input.
        form: the kind of the job.
        as_json: a JSON object per line; otherwise the bare text.

    Attributes:
        done: indices of the finished lines, with those of earlier runs.
        errors: the number of finished lines without a text.
        complete: whether the file of a whole output exists and holds these texts.

    Raises:
        ConfigError: the file cannot be written, or holds something else.
    """

    def __init__(self, path: Path | None, lines: Sequence[Line], form: Form, *, as_json: bool = True) -> None:
        self.path, self.form, self._lines, self._as_json = path, form, lines, as_json
        self.done: set[int] = set()
        self.errors = 0
        self._texts: dict[int, str] = {}  # of a whole output
        self._journal = None if path is None else self._open(path)
        self.complete = form.whole and path is not None and path.exists()
        if self.complete and not self._is_written():
            raise ConfigError(
                f"output {path} exists and is left unchanged, because it may hold something else; name another --output, or "
                "remove the file to translate again"
            )

    def _open(self, path: Path) -> Journal:
        check_output(path)
        form, by_index = self.form, {line.index: line for line in self._lines}
        place = path.with_name(path.name + _PARTIAL) if form.whole else path
        journal = Journal(place, good=form.is_record, kind=form.record, beginnings=form.beginnings)
        for i, found in enumerate(journal.found):
            if "index" in found and (why := form.unlike(found, by_index.get(found["index"]), self._advice(place))):
                raise ConfigError(f"{place}, line {i + 1}: {why}")
        self._count(found for found in journal.found if "index" in found)
        return journal

    def _is_written(self) -> bool:
        """Whether a run was killed after writing the file and before removing FILE.partial."""
        whole = self._found and len(self.done) == len(self._lines)
        return bool(whole) and self.path is not None and self.path.read_bytes() == self._text().encode("utf-8")

    @property
    def where(self) -> str:
        """The file from which a stopped run is resumed; empty for standard output."""
        return "" if self._journal is None else str(self._journal.path)

    @property
    def in_order(self) -> bool:
        """Whether a text's line can only be written after those before it."""
        return self.form.whole and self._journal is None

    @property
    def _found(self) -> list[dict[str, Any]]:
        return [] if self._journal is None else self._journal.found

    @property
    def first_seed(self) -> int | None:
        """The seed of line 0 in the earlier run, if the file holds it."""
        return next((found["settings"].get("seed") for found in self._found if "settings" in found), None)

    def made_with(self, known: Facts) -> bool:
        """Whether every record holds these settings."""
        return all(found["settings"].get(name) == value for found in self._found for name, value in known.items())

    def begin(self, settings: Facts) -> None:
        """Compare the settings with those of the earlier run; a whole output without one stores them.

        Raises:
            ConfigError: they differ.
        """
        if self._journal is None:
            return
        place, now = self._journal.path, _compared(settings)
        for i, found in enumerate(self._found[:1] if self.form.whole else self._found):
            before = _compared(found["settings"])
            if before != now and (unlike := difference(before, now)):
                made = f"{place} was started" if self.form.whole else f"{place}, line {i + 1}: this was made"
                raise ConfigError(f"{made} with {unlike}: give the same options as before, or {self._advice(place)}")
        if self.form.whole and not self._found:
            self._journal.append([{"settings": dict(settings)}])

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records. A file is on disk when this returns."""
        new = list(records)
        if self._journal is not None:
            self._count(new)  # first, because Ctrl-C comes as soon as they are on disk
            self._journal.append(new)
        else:
            with standard_output():
                sys.stdout.writelines(map(self._line, new))
                sys.stdout.flush()
            self._count(new)

    def finish(self) -> None:
        """Write a whole output and remove FILE.partial. All lines are done.

        Raises:
            ConfigError: another process has written the file in the meantime.
        """
        if not self.form.whole or self._journal is None or self.path is None:
            return
        if not self.complete:
            if self.path.exists():
                raise ConfigError(
                    f"output {self.path} was created by another process and is left unchanged; the translations are in "
                    f"{self.where}: remove the output, and the same command writes it"
                )
            replace_file(self.path, self._text())
        self._journal.path.unlink()

    def _count(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self.done.add(record["index"])
            self.errors += "error" in record
            if self.form.whole and self.path is not None:
                self._texts[record["index"]] = self._line(record)

    def _text(self) -> str:
        return "".join(self._texts[line.index] for line in self._lines)

    def _line(self, record: Mapping[str, Any]) -> str:
        return line_of(record) if self._as_json else re.sub(r"[\r\n]+", " ", record.get("text", "")) + "\n"

    def _advice(self, place: Path) -> str:
        what = place.name if self.form.whole else "the file"
        return f"name another --output, or remove {what} to start again"


def _compared(settings: Facts) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != _GIVEN}
