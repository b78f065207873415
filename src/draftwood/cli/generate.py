"""``draftwood generate``."""

from __future__ import annotations

import json
from typing import Any

import click

from draftwood.cli.console import text_of
from draftwood.cli.options import Changes, Sectioned, own_defaults
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import SECTIONS, Settings, check_input
from draftwood.loading.checkpoint import GENERATION_CONFIG
from draftwood.loading.names import bundled_pairs, check_models


def _own() -> Changes:
    """The defaults of the bundled target, as help."""
    pair = bundled_pairs().get("language")
    config = {} if pair is None else json.loads((pair["target"] / GENERATION_CONFIG).read_text(encoding="utf-8"))
    return own_defaults("the bundled model", config)


@click.command(name="generate", cls=Sectioned, sections=SECTIONS, changes=_own())
@click.argument("prompt", required=False)
def command(prompt: str | None, **options: Any) -> None:
    """Continue PROMPT, or standard input if PROMPT is -, or every prompt of a file (--input).

    The default is the bundled pair of models. The text goes to standard output as it is generated. A last line with the
    speed goes to standard error (on a terminal, below the text).

    With --input, each line of the file is a JSON object: {"prompt": "Once", "seed": 7, "id": "a"}. The seed and the id are
    optional; other keys are ignored. A line without a seed gets --seed plus its line number, counted from 0. The answers
    are JSON lines in --output or on standard output. A line without a valid prompt is reported on standard error, its
    answer holds an "error", and the exit status is 1. The same command resumes a stopped run; other settings are refused.
    """
    settings = Settings.of(options)
    check_input(settings, prompt, single=prompt is not None)
    write_texts(settings, None if prompt is None else text_of("prompt", prompt))


def write_texts(settings: Settings, text: str | None) -> None:
    """Continue or translate a text, or each line of the input where it is None; the exit status is 1 if a line has no text.

    Wrong names of models are refused before PyTorch comes.
    """
    check_models(settings.kind, settings.models.target, settings.models.draft)
    with loading_libraries():
        from draftwood.cli.job.file import run_file
        from draftwood.cli.single import run_single
    if text is not None:
        run_single(settings, text)
    elif run_file(settings):
        raise click.exceptions.Exit(1)
