"""A text for every line of a file."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import click

from draftwood.cli.job.lines import Line, read_prompts, read_sentences
from draftwood.cli.job.output import Output
from draftwood.cli.job.resume import facts_of, text_key
from draftwood.cli.progress import steps
from draftwood.cli.results import summary
from draftwood.cli.settings import Opened, Settings
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.lock import locked
from draftwood.core.rounds import Stats
from draftwood.core.seeds import seed_or_random
from draftwood.core.token_texts import TokenTexts
from draftwood.engine.requests import Request
from draftwood.engine.session import Session

Complete: TypeAlias = Callable[[Settings, Output, Sequence[Line]], None]
"""Does the lines that an output lacks."""
_Task: TypeAlias = tuple[Request | None, Mapping[str, Any]]
"""The text to decode for a line, and the first fields of its record; without a text the record is complete."""


def run_file(settings: Settings, complete: Complete | None = None) -> int:
    """Answer every prompt, or translate every line, of the input for which the output holds no text yet.

    Returns the number of lines without a text. ``complete`` does the remaining lines, by default in this process.
    """
    files, whole = settings.files, settings.kind == "translation"
    with locked(files.output, ", or name another --output"):
        lines = (read_sentences if whole else read_prompts)(files.input or Path("-"))
        out = Output(files.output, lines, whole=whole, as_json=settings.display.json or not whole)
        (complete or _complete)(settings, out, lines)
    if out.errors:
        left = "they are left empty" if whole else "their lines say why"
        click.echo(f"{out.errors} of {len(lines)} lines could not be used; {left}.", err=True)
    return out.errors


def _complete(settings: Settings, out: Output, lines: Sequence[Line]) -> None:
    """Do the remaining lines with the settings of the resumed run. Finished texts are written even if the rest fails."""
    opened: Opened[Session] = settings.open()
    first_seed = seed_or_random(out.first_seed if settings.seed is None else settings.seed)
    facts = facts_of(settings, opened, None if out.whole else first_seed)
    out.begin(facts)
    if lines and len(out.done) == len(lines):
        out.write([])  # drops half a line of a killed run
        out.finish()
        click.echo(f"All {len(lines)} lines are done in {out.path} already.", err=True)
        return
    held = {"settings": facts}
    tasks = [_task(line, settings, opened, first_seed, held) for line in lines if line.index not in out.done]
    if out.done:
        click.echo(f"{out.finished} in {out.where} already.", err=True)
    extra = {"method": asdict(opened.method), "engine": opened.session.target.engine, **held}
    seed = "" if out.whole else f"seed {first_seed}"
    try:
        total = _decode(opened, tasks, out, settings.files.batch_size, extra)
    except KeyboardInterrupt:
        raise out.interrupted(seed) from None
    out.finish()
    parts = (f"{len(tasks)} lines", summary(total, opened.decoder), seed)
    click.echo(", ".join(part for part in parts if part), err=True)


def failed(line: Line, error: str, held: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a line without a text; it is reported on standard error too. ``held`` is added."""
    click.echo(f"Line {line.index + 1}: {error}.", err=True)
    return {"index": line.index, **line.carried, "source": line.source, "error": error, **held}


def _task(line: Line, settings: Settings, opened: Opened[Session], first_seed: int, held: Mapping[str, Any]) -> _Task:
    head, whole, session = {"index": line.index, **line.carried}, settings.kind == "translation", opened.session
    if whole and not line.text.strip():
        return None, {**head, "source": line.text, "text": "", "token_ids": [], **held}
    if line.error is not None:
        return None, failed(line, line.error, held)
    seed = line.seed_after(first_seed)
    try:
        limits, logprobs = settings.limits_from(session.limits), settings.logprobs.wanted
        [request] = session.requests([line.text], limits, [seed], logprobs)
        opened.decoder.pipeline.check_room(request)
    except (CacheError, ConfigError) as error:
        return None, failed(line, str(error), held)
    return request, {**head, text_key(whole=whole): line.text}


def _decode(
    opened: Opened[Session], tasks: Sequence[_Task], out: Output, batch_size: int, extra: Mapping[str, Any]
) -> Stats:
    """Do the tasks, so many at a time: the next one takes the row of one that ends. Records are written in order.

    Returns the statistics of all texts. ``extra`` joins the record of every text.
    """
    total, texts, waiting = Stats(), TokenTexts(opened.session.tokenizer), deque(record["index"] for _, record in tasks)
    finished = {record["index"]: record for request, record in tasks if request is None}
    requests = [request for request, _ in tasks if request is not None]
    begun = [record for request, record in tasks if request is not None]

    def write_ready() -> None:
        ready = []
        while waiting and waiting[0] in finished:
            ready.append(finished.pop(waiting.popleft()))
        if ready:
            out.write(ready)

    lines = len(out.done) + len(tasks)
    shown = out.where is not None or not sys.stdout.isatty()  # a terminal shows the texts
    try:
        write_ready()
        with steps("lines", lines, lines - len(requests), shown=shown) as advance:
            for row, result in opened.decoder.results(requests, opened.sampling, rows=batch_size):
                record, fields = begun[row], result.to_json(texts)
                if out.whole:  # nothing is drawn
                    del fields["seed"]
                total.add(result.stats)
                finished[record["index"]] = {**record, **fields, **extra}
                write_ready()
                advance(description=f"lines, {total.tokens_per_second:.0f} tokens/s")
    finally:  # a file may hold texts before those of earlier lines
        late = [record for _, record in sorted(finished.items()) if "error" not in record]
        if late and (out.where is not None or not out.whole):
            out.write(late)
    return total
