"""One job: the remaining lines, some at a time, with a progress bar. A stopped job can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import click

from draftwood.cli.group import Interrupted
from draftwood.cli.progress import Advance, progress
from draftwood.cli.results import summary
from draftwood.core.rounds import Stats
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request, Result
from draftwood.sampling.settings import Sampling


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """The work for one line.

    Attributes:
        index: line number, from 0.
        request: the text to decode; None where ``record`` is complete, as for an error.
        record: the first fields of the line's record; the result adds the others.
    """

    index: int
    request: Request | None
    record: Mapping[str, Any]


class Sink(Protocol):
    """Stores the records of a job so that a stopped run can be resumed.

    Attributes:
        where: the file from which a stopped run is resumed; empty for standard output.
        count: the number of finished lines, with those of earlier runs.
        errors: the number of finished lines without a text.
    """

    @property
    def where(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def errors(self) -> int: ...

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records. A file is on disk when this returns."""

    def finish(self) -> None:
        """End a job whose lines are all done."""


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """Texts for lines.

    Attributes:
        noun, verb: words for the lines and the work, as in "3 prompts are answered".
        lines: the number of lines, with those of earlier runs.
        tasks: the remaining work, in order.
        record: the fields of a result.
        seed: the seed of the first line; None where nothing is drawn.
    """

    noun: str
    verb: str
    decoder: Decoder
    sampling: Sampling
    lines: int
    tasks: Sequence[Task]
    record: Callable[[Result], Mapping[str, Any]]
    seed: int | None = None

    @property
    def seed_note(self) -> str:
        return "" if self.seed is None else f"seed {self.seed}"


def run(job: Job, sink: Sink, batch_size: int) -> None:
    """Do all tasks of a job. Finished texts are written even if an error or Ctrl-C stops the rest.

    Raises:
        Interrupted: Ctrl-C.
    """
    done, total = job.lines - len(job.tasks), Stats()
    if done:
        click.echo(f"{done} of {job.lines} {job.noun} are {job.verb} in {sink.where} already.", err=True)
    try:
        with progress(job.noun, job.lines, done, to_file=bool(sink.where)) as advance:
            _decode(job, sink, batch_size, total, advance)
    except KeyboardInterrupt:
        where = f" in {sink.where}; the same command resumes there" if sink.where else ""
        seed = f"; {job.seed_note}" if job.seed_note and not sink.where else ""
        raise Interrupted(f"{sink.count} of {job.lines} {job.noun} are {job.verb}{where}{seed}") from None
    sink.finish()
    parts = (f"{len(job.tasks)} {job.noun}", summary(total, job.decoder), job.seed_note)
    click.echo(", ".join(part for part in parts if part), err=True)


def _decode(job: Job, sink: Sink, batch_size: int, total: Stats, advance: Advance) -> None:
    """Do the tasks, so many at a time: the next one takes the row of one that ends."""
    out = _InOrder(job.tasks, sink)
    rows = [(task, task.request) for task in job.tasks if task.request is not None]
    try:
        out.write_ready()
        for _ in range(len(job.tasks) - len(rows)):
            advance(total)
        for row, result in job.decoder.results([request for _, request in rows], job.sampling, rows=batch_size):
            task = rows[row][0]
            total.add(result.stats)
            out.put(task, {**task.record, **job.record(result)})
            advance(total)
    finally:
        out.flush()


@final
class _InOrder:
    """Writes records in the order of their tasks, each as soon as those before it are written."""

    def __init__(self, tasks: Sequence[Task], sink: Sink) -> None:
        self._order = [task.index for task in tasks]
        self._sink = sink
        self._finished = {task.index: task.record for task in tasks if task.request is None}
        self._decoded: set[int] = set()
        self._written = 0  # tasks

    def put(self, task: Task, record: Mapping[str, Any]) -> None:
        """Take the record of a task that was decoded."""
        self._finished[task.index] = record
        self._decoded.add(task.index)
        self.write_ready()

    def write_ready(self) -> None:
        """Write the records before the first task that is not finished."""
        ready = []
        while self._written < len(self._order) and (index := self._order[self._written]) in self._finished:
            ready.append(self._finished.pop(index))
            self._written += 1
        if ready:
            self._sink.write(ready)

    def flush(self) -> None:
        """Write the texts that are finished, though tasks before them are not."""
        if late := sorted(self._decoded & self._finished.keys()):
            self._sink.write([self._finished.pop(index) for index in late])
