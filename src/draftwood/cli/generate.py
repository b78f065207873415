"""``draftwood generate``."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftwood.cli.console import check_unicode
from draftwood.cli.options import Sectioned, given, section_options
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import SECTIONS, Settings, check_input
from draftwood.core.errors import ConfigError
from draftwood.loading.names import check_models


@click.command(name="generate", cls=Sectioned, sections=SECTIONS)
@click.argument("prompt", required=False)
@section_options(SECTIONS)
@click.pass_context
def command(ctx: click.Context, /, prompt: str | None, **options: Any) -> None:
    """Continue PROMPT, or standard input if PROMPT is -, or every prompt of a file (--input).

    The default is the bundled pair of models, with the sampling of the target's generation config (temperature 0.6 for the
    bundled one). The text goes to standard output as it is generated. A last line with the speed goes to standard error (on
    a terminal, below the text).

    With --input, each line of the file is a JSON object: {"prompt": "Once", "seed": 7, "id": "a"}. The seed and the id are
    optional; other keys are ignored. A line without a seed gets --seed plus its line number, counted from 0. The answers
    are JSON lines in --output or on standard output. A line without a valid prompt is reported on standard error, its
    answer holds an "error", and the exit status is 1. The same command resumes a stopped run; other settings are refused.
    """
    settings = Settings.of(options, given(ctx))
    check_input(settings, prompt, single=prompt is not None)
    if prompt is None:
        with loading_libraries():
            from draftwood.cli.job.file import run_file
        if run_file(settings):
            ctx.exit(1)
    else:
        check_models("language", settings.models.target, settings.models.draft)
        with loading_libraries():
            from draftwood.cli.single import run_single
        run_single(settings, _text(prompt))


def _text(prompt: str) -> str:
    """The prompt; ``-`` reads standard input and drops its last line break."""
    if prompt == "-" and sys.stdin is None:
        raise ConfigError("the prompt is -, but standard input is closed: give a text, or --input FILE")
    where, text = "given", prompt
    if prompt == "-":
        data = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
        where, text = "on standard input", data.decode("utf-8", errors="surrogateescape")
    check_unicode(f"the prompt {where}", text)
    return text
