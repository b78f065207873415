"""A file of prompts, the output of its answers, and the command that writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from draftwood.engine.decode import Decoder
from tests.cli.conftest import Run


class Job:
    """A command from ``prompts.jsonl`` to ``out.jsonl`` in a folder."""

    def __init__(self, run: Run, options: Sequence[object], folder: Path, *, command: str = "generate") -> None:
        self.run, self.options, self.command = run, options, command
        self.input, self.out = folder / "prompts.jsonl", folder / "out.jsonl"

    def write(self, *lines: str | bytes) -> None:
        """The lines of the input."""
        data = (line if isinstance(line, bytes) else line.encode() for line in lines)
        self.input.write_bytes(b"".join(line + b"\n" for line in data))

    def __call__(self, *more: object) -> Result:
        return self.run(self.command, *self.options, "--input", self.input, "--output", self.out, *more)

    def succeeds(self, *more: object) -> Result:
        result = self(*more)
        assert result.exit_code == 0, result.output
        return result

    def fails(self, *more: object, code: int = 2) -> str:
        """What it says on standard error."""
        result = self(*more)
        assert result.exit_code == code, result.output
        return result.stderr

    def stopped(self, count: int, *more: object) -> str:
        """What it says where Ctrl-C comes after so many finished texts."""
        real = Decoder.results

        def results(*args: Any, **named: Any) -> Iterator[Any]:
            yield from islice(real(*args, **named), count)
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Decoder, "results", results)
            return self.fails(*more, code=130)

    def keep(self, count: int) -> None:
        """Leave so many answers, as a killed run does."""
        self.out.write_bytes(b"".join(self.out.read_bytes().splitlines(keepends=True)[:count]))

    @property
    def answers(self) -> list[dict[str, Any]]:
        return objects(self.out.read_bytes())

    @property
    def texts(self) -> dict[int, tuple[str, int]]:
        """Text and seed of each line."""
        return {found["index"]: (found["text"], found["seed"]) for found in self.answers}


def objects(data: bytes) -> list[dict[str, Any]]:
    """One object a line; other line separators stand inside of texts."""
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]
