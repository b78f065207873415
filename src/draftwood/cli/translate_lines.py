"""A file of sentences: batch after batch, with a progress bar; stopped and taken up again at will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from draftwood.cli.group import Interrupted
from draftwood.cli.lines import check_two_files, report_error
from draftwood.cli.lock import locked
from draftwood.cli.progress import Advance, progress
from draftwood.cli.results import json_of, results, summary
from draftwood.cli.sentences import Sentence, Translations, read_sentences
from draftwood.cli.translate_settings import Opened, Settings
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.rounds import Stats
from draftwood.engine.decode import Request


def run_lines(settings: Settings) -> int:
    """Translate every line of the input that is not translated yet; returns how many lines could not be.

    Raises:
        ConfigError: files that cannot be read, written or taken up again.
    """
    files = settings.files
    source = Path("-") if files.input is None else files.input
    check_two_files(source, files.output)
    with locked(files.output):
        return _complete(settings, read_sentences(source))


def _complete(settings: Settings, sentences: Sequence[Sentence]) -> int:
    files = settings.files
    out = Translations(files.output, sentences, as_json=settings.display.json)
    opened = settings.open()
    out.begin(opened.facts(settings))
    if out.complete:
        out.finish()
        click.echo(f"All {len(sentences)} lines are translated in {files.output} already.", err=True)
        return out.errors
    if out.done:
        click.echo(f"{len(out.done)} of {len(sentences)} lines are translated in {out.where} already.", err=True)
    todo = _encoded([s for s in sentences if s.index not in out.done], opened, settings, out)
    total = Stats()
    try:
        with progress("lines", len(sentences), len(sentences) - len(todo), to_file=files.output is not None) as advance:
            for i in range(0, len(todo), files.batch_size):
                _translate(todo[i : i + files.batch_size], opened, out, total, advance)
    except KeyboardInterrupt:
        went_on = f" in {out.where}; the same command goes on from there" if out.where else ""
        raise Interrupted(f"{out.count} of {len(sentences)} lines are translated{went_on}") from None
    out.finish()
    click.echo(f"{len(sentences)} lines, {summary(total, opened.decoder)}", err=True)
    if out.errors:
        click.echo(f"{out.errors} of {len(sentences)} lines could not be translated; they are left empty.", err=True)
    return out.errors


def _encoded(
    sentences: Sequence[Sentence], opened: Opened, settings: Settings, out: Translations
) -> list[tuple[Sentence, Request]]:
    """Requests for what can be translated; the other lines are named and settled."""
    requests, settled = [], []
    for sentence in sentences:
        if not sentence.text.strip():
            settled.append(sentence.told({"text": "", "token_ids": []}))
            continue
        error = sentence.error
        if error is None:
            try:
                source = opened.translator.encode(sentence.text)
                requests.append((sentence, opened.translator.request(source, opened.limits(settings), 0)))
            except (CacheError, ConfigError) as trouble:
                error = str(trouble)
        if error is not None:
            report_error(sentence.index, error)
            settled.append(sentence.told({"error": error}))
    out.write(settled)
    return requests


def _translate(
    batch: Sequence[tuple[Sentence, Request]], opened: Opened, out: Translations, total: Stats, advance: Advance
) -> None:
    """One batch; what is finished is written whatever stops the rest."""
    finished: dict[int, dict[str, Any]] = {}
    told = {"method": asdict(opened.method), "engine": opened.translator.target.engine}
    try:
        for row, result in results(opened.decoder, [request for _, request in batch], opened.translator.sampling):
            finished[row] = batch[row][0].told({**json_of(result, opened.translator.sampling), **told})
            total.add(result.stats)
            advance(total)
    finally:
        out.write(finished[row] for row in sorted(finished))
