"""``draftwood translate --input``: a file of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from draftwood.cli.job.lines import NOT_UTF8, Line, read_lines, report_error
from draftwood.cli.job.lock import locked
from draftwood.cli.job.run import Job, Task, run
from draftwood.cli.job.translations import Translations
from draftwood.cli.results import json_of
from draftwood.cli.translate_settings import Opened, Settings
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.token_texts import TokenTexts


def run_lines(settings: Settings) -> int:
    """Translate the input lines that are not translated yet; returns the number of failed lines.

    Raises:
        ConfigError: files that cannot be read, written or resumed.
    """
    files = settings.files
    source = Path("-") if files.input is None else files.input
    with locked(files.output):
        return _complete(settings, read_sentences(source))


def read_sentences(path: Path) -> list[Line]:
    """All lines of a file, or of standard input if the path is ``-``.

    Raises:
        ConfigError: a file that cannot be read.
    """
    return [_sentence(i, line.removesuffix(b"\r")) for i, line in enumerate(read_lines(path))]


def _sentence(index: int, data: bytes) -> Line:
    text = data.decode("utf-8", errors="replace")
    return Line(index=index, source=text, text=text, error=None if text.encode() == data else NOT_UTF8)


def _complete(settings: Settings, lines: Sequence[Line]) -> int:
    out = Translations(settings.files.output, lines, as_json=settings.display.json)
    opened = settings.open()
    out.begin(opened.facts(settings))
    if out.complete:
        out.finish()
        click.echo(f"All {len(lines)} lines are translated in {settings.files.output} already.", err=True)
        return out.errors
    texts = TokenTexts(opened.translator.tokenizer)
    extra = {"method": asdict(opened.method), "engine": opened.translator.target.engine}
    job = Job(
        noun="lines",
        verb="translated",
        decoder=opened.decoder,
        sampling=opened.translator.sampling,
        lines=len(lines),
        tasks=[_task(line, opened, settings) for line in lines if line.index not in out.done],
        record=lambda result: {**json_of(result, opened.translator.sampling, texts), **extra},
    )
    run(job, out, settings.files.batch_size)
    if out.errors:
        click.echo(f"{out.errors} of {len(lines)} lines could not be translated; they are left empty.", err=True)
    return out.errors


def _task(line: Line, opened: Opened, settings: Settings) -> Task:
    """The task of a line. An invalid line is reported on standard error."""
    head = {"index": line.index, "source": line.source}
    if not line.text.strip():
        return Task(index=line.index, request=None, record={**head, "text": "", "token_ids": []})
    error, request = line.error, None
    if error is None:
        try:
            request = opened.request(line.text, settings)
        except (CacheError, ConfigError) as trouble:
            error = str(trouble)
    if error is not None:
        report_error(line.index, error)
        head["error"] = error
    return Task(index=line.index, request=request, record=head)
