"""The file of answers. It grows line by line, and the next run resumes a stopped one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from draftwood.cli.console import standard_output
from draftwood.cli.job.journal import Journal, line_of
from draftwood.cli.job.lines import Line
from draftwood.cli.job.resume import Facts, difference
from draftwood.cli.prompts import seed_of
from draftwood.core.errors import ConfigError

_ANSWER = {"prompt": str, "text": str, "seed": int}
_ERROR = {"source": str, "error": str}
_ADVICE = "name another --output, or remove the file to start again"
_GIVEN = "given"


@final
class Answers:
    """A sink of JSON lines in a file, or on standard output. Each line holds the settings that it was made with.

    Args:
        path: the file, which may hold answers of an earlier run; None for standard output.

    Attributes:
        found: answers and errors of the earlier run.

    Raises:
        ConfigError: the file cannot be written, or holds something else.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._printed = 0
        self._errors = 0
        self._journal = None if path is None else Journal(
            path, good=_is_answer, kind="an answer of 'draftwood generate'", beginnings=('{"index": ',)
        )  # fmt: skip
        self.found = [] if self._journal is None else self._journal.found

    @property
    def where(self) -> str:
        return "" if self.path is None else str(self.path)

    @property
    def count(self) -> int:
        return len(self.found) + (self._printed if self._journal is None else self._journal.written)

    @property
    def errors(self) -> int:
        return self._errors + sum("error" in answer for answer in self.found)

    @property
    def first_seed(self) -> int | None:
        """The seed of line 0 in the earlier run, if the file holds it."""
        return next((answer["settings"]["seed"] for answer in self.found if "settings" in answer), None)

    @property
    def settled(self) -> bool:
        """Whether every answer in the file holds its settings."""
        return all("settings" in answer for answer in self.found)

    def made_with(self, known: Facts) -> bool:
        """Whether every answer holds these settings."""
        settings = [answer["settings"] for answer in self.found] if self.settled else [{}]
        return all(found.get(name) == value for found in settings for name, value in known.items())

    def done(self, lines: Sequence[Line]) -> set[int]:
        """Indices of the lines with an answer or an error.

        Raises:
            ConfigError: the file answers other prompts, or was made with other seeds.
        """
        by_index = {line.index: line for line in lines}
        for i, answer in enumerate(self.found):
            line = by_index.get(answer["index"])
            if "error" in answer and line is not None and line.source != answer["source"]:
                raise self._wrong(
                    i,
                    f"this is the error of another text than line {line.index + 1} of the input now holds; remove this "
                    "line, and the prompt is answered",
                )
            if line is None or answer.get("prompt", line.text) != line.text:
                raise self._wrong(
                    i, f"this answers another prompt than line {answer['index'] + 1} of the input has; {_ADVICE}"
                )
            if "seed" not in answer or "settings" not in answer:
                continue
            seed = seed_of(line, answer["settings"]["seed"])
            if answer["seed"] != seed:
                raise self._wrong(
                    i, f"this was made with seed {answer['seed']}, but the line's seed is now {seed}; {_ADVICE}"
                )
        return {answer["index"] for answer in self.found}

    def begin(self, settings: Facts) -> None:
        """Compare the settings with those of the earlier run.

        Raises:
            ConfigError: they differ, or the file does not hold them.
        """
        now = {name: value for name, value in settings.items() if name != _GIVEN}
        for i, answer in enumerate(self.found):
            if "settings" not in answer:
                raise self._wrong(
                    i,
                    "this answer of an earlier version of Draftwood holds no settings, so the rest cannot be made "
                    f"alike; {_ADVICE}",
                )
            before = {name: value for name, value in answer["settings"].items() if name != _GIVEN}
            if before != now and (unlike := difference(before, now)):
                raise self._wrong(i, f"this was made with {unlike}: give the same options as before, or {_ADVICE}")

    def write(self, answers: Iterable[Mapping[str, Any]]) -> None:
        new = list(answers)
        if self._journal is not None:
            self._journal.append(new)
        else:
            with standard_output():
                sys.stdout.writelines(map(line_of, new))
                sys.stdout.flush()
            self._printed += len(new)
        self._errors += sum("error" in answer for answer in new)

    def finish(self) -> None:
        """Nothing to do: all answers are written."""

    def _wrong(self, index: int, what: str) -> ConfigError:
        return ConfigError(f"{self.path}, line {index + 1}: {what}")


def _is_answer(index: int, found: dict[str, Any]) -> bool:
    kinds = _ERROR if "error" in found else _ANSWER
    known = all(type(found.get(key)) is kind for key, kind in kinds.items()) and type(found.get("index")) is int
    settings = found.get("settings", {"seed": 0})
    return known and isinstance(settings, dict) and type(settings.get("seed")) is int
