"""A text for every line of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import click

from draftwood.cli.job.forms import FORMS
from draftwood.cli.job.lines import Line, read_sentences
from draftwood.cli.job.lock import locked
from draftwood.cli.job.output import Output
from draftwood.cli.job.resume import facts_of, known_facts
from draftwood.cli.job.run import Job, Task, run
from draftwood.cli.prompts import read_prompts
from draftwood.cli.settings import Opened, Settings
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.seeds import seed_or_random
from draftwood.core.token_texts import TokenTexts
from draftwood.engine.requests import Result
from draftwood.engine.session import Session

Complete: TypeAlias = Callable[[Settings, Output, Sequence[Line]], None]
"""Does the lines that an output lacks."""


def run_file(settings: Settings, complete: Complete | None = None) -> int:
    """Answer every prompt, or translate every line, of the input for which the output holds no text yet.

    Args:
        complete: does the remaining lines; by default this process.

    Returns:
        The number of lines without a text.

    Raises:
        ConfigError: files that cannot be read, written or resumed.
    """
    files, form = settings.files, FORMS[settings.kind]
    with locked(files.output):
        lines = (read_sentences if form.whole else read_prompts)(files.input or Path("-"))
        out = Output(files.output, lines, form, as_json=settings.display.json or not form.whole)
        if not form.whole and len(out.done) == len(lines) and out.made_with(known_facts(settings)):  # no model is needed
            out.write([])  # drops half a line of a killed run
            click.echo(f"All {len(lines)} {form.noun} are {form.verb} in {out.path} already.", err=True)
        else:
            (complete or _complete)(settings, out, lines)
    if out.errors:
        click.echo(f"{out.errors} of {len(lines)} {form.noun} could not be {form.verb}; {form.failed}.", err=True)
    return out.errors


def _complete(settings: Settings, out: Output, lines: Sequence[Line]) -> None:
    """Do the remaining lines with the settings of the resumed run."""
    opened: Opened[Session] = settings.open()
    first_seed = seed_or_random(out.first_seed if settings.seed is None else settings.seed)
    facts = facts_of(settings, opened, None if out.form.whole else first_seed)
    out.begin(facts)
    if out.complete:
        out.finish()
        click.echo(f"All {len(lines)} {out.form.noun} are {out.form.verb} in {out.path} already.", err=True)
        return
    held = {} if out.form.whole else {"settings": facts}
    tasks = [_task(line, settings, opened, first_seed, held) for line in lines if line.index not in out.done]
    for task in tasks:
        if "error" in task.record:
            click.echo(f"Line {task.index + 1}: {task.record['error']}.", err=True)
    extra = {"method": asdict(opened.method), "engine": opened.session.target.engine, **held}
    texts = TokenTexts(opened.session.tokenizer)

    def record(result: Result) -> dict[str, Any]:
        found = {**result.to_json(texts), **extra}
        if out.form.whole:  # nothing is drawn
            del found["seed"]
        return found

    seed_note = "" if out.form.whole else f"seed {first_seed}"
    job = Job(opened=opened, tasks=tasks, record=record, seed_note=seed_note)
    run(job, out, settings.files.batch_size)


def _task(line: Line, settings: Settings, opened: Opened[Session], first_seed: int, held: Mapping[str, Any]) -> Task:
    """The task of a line; ``held`` is added to the record of an error."""
    head, form = {"index": line.index, **line.carried}, FORMS[settings.kind]
    if form.whole and not line.text.strip():
        return Task(index=line.index, request=None, record={**head, "source": line.text, "text": "", "token_ids": []})
    error, request = line.error, None
    if error is None:
        seed, session = line.seed_after(first_seed), opened.session
        limits, logprobs = settings.limits_from(session.limits), settings.logprobs.wanted
        try:
            (request,) = session.requests([line.text], limits, [seed], logprobs)
            opened.decoder.pipeline.check_room(request)
        except (CacheError, ConfigError) as trouble:
            error = str(trouble)
    if error is not None:
        return Task(index=line.index, request=None, record={**head, "source": line.source, "error": error, **held})
    return Task(index=line.index, request=request, record={**head, form.key: line.text})
