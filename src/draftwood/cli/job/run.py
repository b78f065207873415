"""One job: the remaining lines, some at a time, with a progress bar. A stopped job can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import click

from draftwood.cli.group import Interrupted
from draftwood.cli.job.output import Output
from draftwood.cli.progress import Advance, progress
from draftwood.cli.results import summary
from draftwood.cli.settings import Opened
from draftwood.core.rounds import Stats
from draftwood.engine.requests import Request, Result
from draftwood.engine.session import Session


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


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """Texts for lines.

    Attributes:
        tasks: the remaining work, in order.
        record: the fields of a result.
        seed_note: the seed of the first line in words; empty where nothing is drawn.
    """

    opened: Opened[Session]
    tasks: Sequence[Task]
    record: Callable[[Result], Mapping[str, Any]]
    seed_note: str = ""


def run(job: Job, out: Output, batch_size: int) -> None:
    """Do all tasks of a job. Finished texts are written even if an error or Ctrl-C stops the rest.

    Raises:
        Interrupted: Ctrl-C.
    """
    done, total, noun, verb = len(out.done), Stats(), out.form.noun, out.form.verb
    lines = done + len(job.tasks)
    if done:
        click.echo(f"{done} of {lines} {noun} are {verb} in {out.where} already.", err=True)
    try:
        with progress(noun, lines, done, to_file=bool(out.where)) as advance:
            _decode(job, out, batch_size, total, advance)
    except KeyboardInterrupt:
        where = f" in {out.where}; the same command resumes there" if out.where else ""
        seed = f"; {job.seed_note}" if job.seed_note and not out.where else ""
        raise Interrupted(f"{len(out.done)} of {lines} {noun} are {verb}{where}{seed}") from None
    out.finish()
    parts = (f"{len(job.tasks)} {noun}", summary(total, job.opened.decoder), job.seed_note)
    click.echo(", ".join(part for part in parts if part), err=True)


def _decode(job: Job, out: Output, batch_size: int, total: Stats, advance: Advance) -> None:
    """Do the tasks, so many at a time: the next one takes the row of one that ends."""
    ordered = _InOrder(job.tasks, out)
    rows = [(task, task.request) for task in job.tasks if task.request is not None]
    try:
        ordered.write_ready()
        for _ in range(len(job.tasks) - len(rows)):
            advance(total)
        decoder, sampling = job.opened.decoder, job.opened.sampling
        for row, result in decoder.results([request for _, request in rows], sampling, rows=batch_size):
            task = rows[row][0]
            total.add(result.stats)
            ordered.put(task, {**task.record, **job.record(result)})
            advance(total)
    finally:
        if not out.in_order:
            ordered.flush()


@final
class _InOrder:
    """Writes records in the order of their tasks, each as soon as those before it are written."""

    def __init__(self, tasks: Sequence[Task], out: Output) -> None:
        self._order = [task.index for task in tasks]
        self._out = out
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
            self._out.write(ready)

    def flush(self) -> None:
        """Write the texts that are finished, though tasks before them are not."""
        if late := sorted(self._decoded & self._finished.keys()):
            self._out.write([self._finished.pop(index) for index in late])
