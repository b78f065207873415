"""``draftwood generate --input``: a file of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from draftwood.cli.job.answers import Answers
from draftwood.cli.job.lines import Line
from draftwood.cli.job.lock import locked
from draftwood.cli.job.resume import end_facts, model_facts, plain, text_facts
from draftwood.cli.job.run import Job, run
from draftwood.cli.prompts import read_prompts, tasks_of
from draftwood.cli.settings import Settings
from draftwood.core.seeds import seed_or_random
from draftwood.core.token_texts import TokenTexts
from draftwood.loading.names import named_or_bundled, resolve


def run_file(settings: Settings) -> int:
    """Answer every prompt of the input file that the output file does not answer yet.

    Returns:
        The number of lines that could not be answered.

    Raises:
        ConfigError: files that cannot be read, written or resumed.
    """
    files = settings.files
    assert files.input is not None
    with locked(files.output):
        return _complete(settings, files.input, Answers(files.output))


def _complete(settings: Settings, source: Path, answers: Answers) -> int:
    lines = read_prompts(source)
    done = answers.done(lines)
    todo = [line for line in lines if line.index not in done]
    if not todo and (not answers.settled or answers.made_with(_known(settings))):  # no model is needed
        answers.write([])  # drops half a line of a killed run
        unknown = "" if answers.settled else "; the file does not say with which settings"
        click.echo(f"All {len(lines)} prompts are answered in {answers.path} already{unknown}.", err=True)
    else:
        _answer_all(settings, answers, lines, todo)
    if answers.errors:
        click.echo(f"{answers.errors} of {len(lines)} prompts could not be answered; their lines say why.", err=True)
    return answers.errors


def _answer_all(settings: Settings, answers: Answers, lines: Sequence[Line], todo: Sequence[Line]) -> None:
    """Answer the remaining lines with the settings of the resumed run."""
    first_seed = _first_seed(settings, answers)
    pair, decoder, sampling = settings.open()
    method = pair.method(settings.method, temperature=sampling.temperature)
    facts = {
        **_known(settings),
        "dtype": str(pair.model.dtype).removeprefix("torch."),
        "engine": pair.target.engine,
        "seed": first_seed,
        **end_facts(pair.eos, pair.final_token),
        **text_facts(method, sampling, settings.limits),
        **settings.logprobs.facts,
    }
    answers.begin(facts)
    texts = TokenTexts(pair.tokenizer)
    extra = {"method": asdict(method), "engine": pair.target.engine, "settings": facts}
    job = Job(
        noun="prompts",
        verb="answered",
        decoder=decoder,
        sampling=sampling,
        lines=len(lines),
        tasks=tasks_of(todo, pair, decoder, settings, first_seed, facts),
        record=lambda result: {**result.to_json(texts), **extra},
        seed=first_seed,
    )
    run(job, answers, settings.files.batch_size)


def _known(settings: Settings) -> dict[str, Any]:
    """The settings that are known before models are loaded: model files and given options."""
    parts = (settings.loading, settings.method, settings.sampling, settings.limits, settings.logprobs)
    values = {f.name: getattr(part, f.name) for part in parts for f in fields(part)} | {"seed": settings.seed}
    given = {name: values[name] for name in sorted(settings.given & values.keys())}
    models = settings.models
    target, draft = named_or_bundled("language", models.target, models.draft)
    target, draft = resolve(target), None if draft is None else resolve(draft)
    return {**model_facts(target, draft, (models.target, models.draft)), "given": plain(given)}


def _first_seed(settings: Settings, answers: Answers) -> int:
    """The seed of line 0: the given one, that of the resumed run, or a drawn one."""
    before = answers.first_seed if settings.seed is None else None
    return seed_or_random(settings.seed) if before is None else before
