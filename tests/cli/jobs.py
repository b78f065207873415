"""A file of prompts, the output of its answers, and the command that writes them."""

import json
from contextlib import contextmanager
from itertools import islice

import pytest

from draftwood.engine.decode import Decoder


def succeeded(result):
    assert result.exit_code == 0, result.output
    return result


class Job:
    """A command from ``prompts.jsonl`` to ``out.jsonl`` in a folder."""

    def __init__(self, run, options, folder, *, command="generate"):
        self.run, self.options, self.command = run, options, command
        self.input, self.out = folder / "prompts.jsonl", folder / "out.jsonl"

    def write(self, *lines):
        """The lines of the input."""
        data = (line if isinstance(line, bytes) else line.encode() for line in lines)
        self.input.write_bytes(b"".join(line + b"\n" for line in data))

    def __call__(self, *more):
        return self.run(self.command, *self.options, "--input", self.input, "--output", self.out, *more)

    def succeeds(self, *more):
        return succeeded(self(*more))

    def fails(self, *more, code=2):
        """What it says on standard error."""
        result = self(*more)
        assert result.exit_code == code, result.output
        return result.stderr

    def stopped(self, count, *more):
        """What it says where Ctrl-C comes after ``count`` finished texts."""
        with stopping(count):
            return self.fails(*more, code=130)

    def keep(self, count):
        """Leave ``count`` answers, as a killed run does."""
        self.out.write_bytes(b"".join(self.out.read_bytes().splitlines(keepends=True)[:count]))

    @property
    def answers(self):
        return objects(self.out.read_bytes())

    @property
    def texts(self):
        """Text and seed of each line."""
        return {found["index"]: (found["text"], found["seed"]) for found in self.answers}


@contextmanager
def stopping(count):
    """Ctrl-C comes after ``count`` finished texts."""
    real = Decoder.results

    def results(*args, **named):
        yield from islice(real(*args, **named), count)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "results", results)
        yield


def objects(data):
    """One object a line; other line separators stand inside of texts."""
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]
