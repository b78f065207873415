"""``draftwood translate``."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from draftwood.cli.console import typed
from draftwood.cli.job.lines import check_files
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import Sectioned, check_display
from draftwood.cli.translate_settings import SECTIONS, Settings, translate_options
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.loading.names import check_models


@click.command(name="translate", cls=Sectioned, sections=SECTIONS, short_help="Translate a text, or a file line by line.")
@click.argument("text", required=False)
@translate_options
@click.pass_context
def command(ctx: click.Context, /, text: str | None, **options: Any) -> None:
    """Translate TEXT, or every line of standard input if TEXT is -, or every line of a file (--input).

    The default is the bundled pair of models, which translates German to English. Decoding is greedy: the translation is
    the target's own, unless --beta or --tau accept tokens whose scores are close to its best. A text is translated in one
    piece; single sentences work best.

    With --input, line n of --output (or of standard output) translates line n. Lines that are too long or not UTF-8 are
    reported on standard error and left empty, and the exit status is 1. With --json every line is a JSON object. The output
    file appears when all lines are done. The same command resumes a stopped run.
    """
    settings = Settings.of(options)
    text = None if text is None else typed(text)
    _check_together(ctx, settings, text)
    if text is not None and text != "-":
        check_models("translation", settings.models.target, settings.models.draft)
        run_one(settings, text)
        return
    with loading_libraries():
        from draftwood.cli.translate_lines import run_lines
    if run_lines(settings):
        ctx.exit(1)


def run_one(settings: Settings, text: str) -> None:
    """Translate one text and print the translation."""
    with loading_libraries():
        from draftwood.cli.single import OneText, write_one
    opened = settings.open()
    translator = opened.translator
    write_one(
        OneText(
            decoder=opened.decoder,
            plain=translator.decoder(Method(method="ar")) if settings.display.compare else None,
            request=opened.request(text, settings),
            sampling=translator.sampling,
            display=settings.display,
            shown_before="",
            head={"source": text, "engine": translator.target.engine, "fallback": translator.fallback},
            method=opened.method,
            dtype=str(translator.model.dtype),
        )
    )


def _check_together(ctx: click.Context, settings: Settings, text: str | None) -> None:
    """Refuse options that would have no effect, and files that cannot be read or written."""
    files, display = settings.files, settings.display
    if text is None and files.input is None:
        raise ConfigError('there is no text: give a sentence such as "Guten Tag.", - for standard input, or --input FILE')
    if text is not None and files.input is not None:
        raise ConfigError(f"both a text ({text!r}) and --input {files.input} were given: leave one of them out")
    if text is not None and not text.strip():
        raise ConfigError("the text is empty: give a sentence to translate")
    single = text is not None and text != "-"
    for name in ("output", "batch_size"):
        if single and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise ConfigError(f"--{name.replace('_', '-')} belongs to --input FILE or -, but a single text was given")
    for name in ("show", "compare"):
        if not single and getattr(display, name):
            raise ConfigError(f"--{name} is for a single text; leave it out with --input and -")
    check_files(files.input, files.output)
    settings.logprobs.check_json(display.json, "--json")
    check_display(display, settings.method)
