"""The file of answers: grown batch by batch, safe against being stopped, and completed by the next run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

from draftwood.cli.journal import Journal, line_of
from draftwood.cli.prompts import Line, seed_of
from draftwood.errors import ConfigError

_KINDS = {"index": int, "prompt": str, "text": str, "seed": int}


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
        self._printed = 0
        self._journal = None if path is None else Journal(
            path, good=_is_answer, kind="an answer of 'draftwood generate'", beginnings=('{"index": ',)
        )  # fmt: skip
        self.found = [] if self._journal is None else self._journal.found

    @property
    def written(self) -> int:
        """How many answers this run has written."""
        return self._printed if self._journal is None else self._journal.written

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
        """Append answers; those in a file are on the disk when this returns."""
        if self._journal is not None:
            self._journal.append(answers)
            return
        lines = [line_of(answer) for answer in answers]
        sys.stdout.writelines(lines)
        sys.stdout.flush()
        self._printed += len(lines)


def _is_answer(index: int, found: dict[str, Any]) -> bool:
    return all(type(found.get(key)) is kind for key, kind in _KINDS.items())
