"""A file of prompts: batch after batch, with a progress bar; stopped and taken up again at will."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from draftwood.cli.answers import Answers
from draftwood.cli.group import Interrupted
from draftwood.cli.lines import check_two_files
from draftwood.cli.lock import locked
from draftwood.cli.progress import Advance, progress
from draftwood.cli.prompts import Asked, Line, encode, read_prompts
from draftwood.cli.results import results, summary
from draftwood.cli.resume import end_facts, model_facts, plain, text_facts
from draftwood.cli.settings import Settings
from draftwood.core.rounds import Stats
from draftwood.core.settings import Sampling
from draftwood.engine.decode import Decoder
from draftwood.loading.models import named_or_bundled


def run_file(settings: Settings) -> int:
    """Answer every prompt of the input file that the output file does not answer yet.

    Returns:
        How many lines could not be answered.

    Raises:
        ConfigError: files that cannot be read, written or taken up again.
    """
    files = settings.files
    assert files.input is not None
    check_two_files(files.input, files.output)
    with locked(files.output):
        return _complete(settings, files.input, Answers(files.output))


def _complete(settings: Settings, source: Path, answers: Answers) -> int:
    lines = read_prompts(source)
    done = answers.done(lines)
    todo = [line for line in lines if line.index not in done]
    if not todo and (not answers.settled or answers.made_with(_known(settings))):  # then no model is needed
        answers.write([])  # half a line of a killed run may still stand at the end
        unknown = "" if answers.settled else "; with which settings, the file does not say"
        click.echo(f"All {len(lines)} prompts are answered in {answers.path} already{unknown}.", err=True)
    else:
        _answer_all(settings, answers, lines, todo)
    if answers.errors:
        click.echo(f"{answers.errors} of {len(lines)} prompts could not be answered; their lines say why.", err=True)
    return answers.errors


def _answer_all(settings: Settings, answers: Answers, lines: Sequence[Line], todo: Sequence[Line]) -> None:
    """Answer what is left, under the settings of the run that is being completed."""
    first_seed = _first_seed(settings, answers)
    pair, decoder, sampling = settings.open()
    method = pair.method(settings.method, temperature=sampling.temperature)
    facts = {
        **_known(settings),
        "dtype": str(pair.target.model.dtype).removeprefix("torch."),
        "engine": pair.target.engine,
        "seed": first_seed,
        **end_facts(pair.eos, pair.final_token),
        **text_facts(method, sampling, settings.limits),
    }
    answers.begin(facts)
    asked = encode(todo, pair, decoder, settings.limits, first_seed)
    done = len(lines) - len(todo)
    if done:
        click.echo(f"{done} of {len(lines)} prompts are answered in {answers.path} already.", err=True)
    told = {"method": asdict(method), "engine": pair.target.engine, "settings": facts}
    total = Stats()
    try:
        with progress("prompts", len(lines), done, to_file=answers.path is not None) as advance:
            for batch in _batches(asked, settings.files.batch_size):
                _answer(decoder, told, batch, sampling, answers, total, advance)
    except KeyboardInterrupt:
        raise Interrupted(_how_far(answers, done + answers.written, len(lines), first_seed)) from None
    click.echo(f"{len(todo)} prompts, {summary(total, decoder)}, seed {first_seed}", err=True)


def _known(settings: Settings) -> dict[str, Any]:
    """What is known of the settings before models are loaded: their files, and the options that were given."""
    parts = (settings.loading, settings.method, settings.sampling, settings.limits)
    values = {f.name: getattr(part, f.name) for part in parts for f in fields(part)} | {"seed": settings.seed}
    given = {name: values[name] for name in sorted(settings.given & values.keys())}
    models = settings.models
    target, draft = named_or_bundled("language", models.target, models.draft)
    return {**model_facts(target, draft, (models.target, models.draft)), "given": plain(given)}


def _first_seed(settings: Settings, answers: Answers) -> int:
    """The seed of line 0: given, or that of the run which is being completed, or drawn."""
    before = answers.first_seed if settings.seed is None else None
    return settings.drawn_seed if before is None else before


def _batches(asked: Sequence[Asked], size: int) -> Iterator[list[Asked]]:
    """Lines in order, so many requests at a time; lines with errors go along."""
    batch: list[Asked] = []
    for one in asked:
        batch.append(one)
        if sum(request is not None for _, request in batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _answer(
    decoder: Decoder,
    told: dict[str, Any],
    batch: Sequence[Asked],
    sampling: Sampling,
    answers: Answers,
    total: Stats,
    advance: Advance,
) -> None:
    """One batch; what is finished is written whatever stops the rest."""
    finished = {line.index: line.told({"settings": told["settings"]}) for line, request in batch if request is None}
    rows = [(line, request) for line, request in batch if request is not None]
    try:
        for _ in finished:
            advance(total)
        for row, result in results(decoder, [request for _, request in rows], sampling) if rows else ():
            line = rows[row][0]
            finished[line.index] = line.told({**result.to_json(), **told})
            total.add(result.stats)
            advance(total)
    finally:
        answers.write(finished[index] for index in sorted(finished))


def _how_far(answers: Answers, done: int, of: int, first_seed: int) -> str:
    if answers.path is None:
        return f"{done} of {of} prompts are answered; seed {first_seed}"
    return f"{done} of {of} prompts are answered in {answers.path}; the same command goes on from there"
