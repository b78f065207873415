"""A file of prompts: batch after batch, with a progress bar; stopped and taken up again at will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from draftwood.cli.answers import Answers
from draftwood.cli.group import Interrupted
from draftwood.cli.progress import Advance, progress
from draftwood.cli.prompts import Line, encode, read_prompts
from draftwood.cli.results import results, summary
from draftwood.cli.settings import Settings
from draftwood.decode import Decoder, Request, Result
from draftwood.errors import ConfigError
from draftwood.rounds import Stats
from draftwood.sampling import Sampling


def run_file(settings: Settings) -> None:
    """Answer every prompt of the input file that the output file does not answer yet."""
    files = settings.files
    assert files.input is not None
    if files.output is not None and files.output.exists() and files.input.exists() and files.output.samefile(files.input):
        raise ConfigError(f"--input and --output are the same file, {files.input}: name another --output")
    lines = read_prompts(files.input)
    answers = Answers(files.output)
    first_seed = _first_seed(settings, answers, lines)
    done = answers.done(lines, first_seed)
    todo = [line for line in lines if line.index not in done]
    if not todo:
        answers.write([])  # half a line of a killed run may still stand at the end
        click.echo(f"All {len(lines)} prompts are answered in {files.output} already.", err=True)
        return
    pair, decoder, sampling = settings.open()
    requests = encode(todo, str(files.input), pair, decoder, settings.limits, first_seed)
    if done:
        click.echo(f"{len(done)} of {len(lines)} prompts are answered in {files.output} already.", err=True)
    method = asdict(pair.method(settings.method, temperature=sampling.temperature))
    told = {"method": method, "engine": pair.target.engine}
    total = Stats()
    try:
        with progress("prompts", len(lines), len(done), to_file=files.output is not None) as advance:
            for i in range(0, len(todo), files.batch_size):
                part = slice(i, i + files.batch_size)
                _answer(decoder, told, todo[part], requests[part], sampling, answers, total, advance)
    except KeyboardInterrupt:
        raise Interrupted(_how_far(settings, answers, len(done) + answers.written, len(lines), first_seed)) from None
    click.echo(f"{len(todo)} prompts, {summary(total, decoder)}, seed {first_seed}", err=True)


def _first_seed(settings: Settings, answers: Answers, lines: Sequence[Line]) -> int:
    """The seed of line 0: given, or that of the run which is being completed, or drawn."""
    before = answers.first_seed(lines) if settings.seed is None else None
    return settings.drawn_seed if before is None else before


def _answer(
    decoder: Decoder,
    told: dict[str, Any],
    lines: Sequence[Line],
    requests: Sequence[Request],
    sampling: Sampling,
    answers: Answers,
    total: Stats,
    advance: Advance,
) -> None:
    """One batch; what is finished is written whatever stops the rest."""
    finished: dict[int, Result] = {}
    try:
        for row, result in results(decoder, requests, sampling):
            finished[row] = result
            total.add(result.stats)
            advance(total)
    finally:
        answers.write(_object(lines[row], finished[row], told) for row in sorted(finished))


def _object(line: Line, result: Result, told: dict[str, Any]) -> dict[str, Any]:
    return {"index": line.index, **line.carried, "prompt": line.prompt, **result.to_json(), **told}


def _how_far(settings: Settings, answers: Answers, done: int, of: int, first_seed: int) -> str:
    if answers.path is None:
        return f"{done} of {of} prompts are answered; seed {first_seed}"
    return f"{done} of {of} prompts are answered in {answers.path}; the same command goes on from there"
