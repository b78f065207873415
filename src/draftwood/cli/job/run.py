"""One job: the lines that are left, in batches, with a progress bar; stopped and taken up again at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import click

from draftwood.cli.group import Interrupted
from draftwood.cli.progress import Advance, progress
from draftwood.cli.results import results, summary
from draftwood.core.rounds import Stats
from draftwood.core.settings import Sampling
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request, Result


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be done for one line.

    Attributes:
        index: line number, from 0.
        request: the text to decode; None where ``record`` already says everything, such as an error.
        record: what is written about the line, in front of what the result adds.
    """

    index: int
    request: Request | None
    record: Mapping[str, Any]


class Sink(Protocol):
    """Takes the records of a job, and keeps them where a stopped run can go on.

    Attributes:
        where: the file from which a stopped run goes on; empty for standard output.
        count: lines that are finished, those of earlier runs included.
        errors: how many of them have no text.
    """

    @property
    def where(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def errors(self) -> int: ...

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take records; those of a file are on the disk when this returns."""
        ...

    def finish(self) -> None:
        """All lines are done."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """Texts for lines.

    Attributes:
        noun, verb: what lines are called, and what becomes of them, as in "3 prompts are answered".
        decoder, sampling: how texts are decoded.
        lines: how many there are, those of earlier runs included.
        tasks: what is left, in order.
        record: what a record says about a result.
        seed: the seed of the first line, where anything is drawn.
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
    """Do all tasks of a job; what is finished is written, whatever stops the rest.

    Raises:
        Interrupted: Ctrl-C.
    """
    done, total = job.lines - len(job.tasks), Stats()
    if done:
        click.echo(f"{done} of {job.lines} {job.noun} are {job.verb} in {sink.where} already.", err=True)
    try:
        with progress(job.noun, job.lines, done, to_file=bool(sink.where)) as advance:
            for batch in _batches(job.tasks, batch_size):
                _decode(job, batch, sink, total, advance)
    except KeyboardInterrupt:
        went_on = f" in {sink.where}; the same command goes on from there" if sink.where else ""
        seed = f"; {job.seed_note}" if job.seed_note and not sink.where else ""
        raise Interrupted(f"{sink.count} of {job.lines} {job.noun} are {job.verb}{went_on}{seed}") from None
    sink.finish()
    parts = (f"{len(job.tasks)} {job.noun}", summary(total, job.decoder), job.seed_note)
    click.echo(", ".join(part for part in parts if part), err=True)


def _batches(tasks: Sequence[Task], size: int) -> Iterator[list[Task]]:
    """Tasks in order, so many requests at a time."""
    batch: list[Task] = []
    for task in tasks:
        batch.append(task)
        if sum(task.request is not None for task in batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _decode(job: Job, batch: Sequence[Task], sink: Sink, total: Stats, advance: Advance) -> None:
    finished = {task.index: task.record for task in batch if task.request is None}
    rows = [(task, task.request) for task in batch if task.request is not None]
    try:
        for _ in finished:
            advance(total)
        for row, result in results(job.decoder, [request for _, request in rows], job.sampling) if rows else ():
            task = rows[row][0]
            finished[task.index] = {**task.record, **job.record(result)}
            total.add(result.stats)
            advance(total)
    finally:
        sink.write(finished[index] for index in sorted(finished))
