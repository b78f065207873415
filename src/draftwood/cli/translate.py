"""``draftwood translate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import click

from draftwood.cli.logprob_options import LogprobOptions
from draftwood.cli.options import TEXT, Changes, Sectioned, Sections, given, section_options
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import DisplayOptions, Files, Models, Settings, check_input
from draftwood.core.checks import setting
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions, Method
from draftwood.core.shapes import MAX_NODES
from draftwood.loading.names import check_models


@final
@dataclass(frozen=True, kw_only=True)
class Block:
    """The length of a drafted block."""

    k: int | None = setting(None, "tokens drafted in one pass; default: the draft's own number")


SECTIONS: Sections = {
    "Models": (Models, LoadOptions),
    "Drafting": (Method, Block),
    "Length": (Limits,),
    "Files": (Files,),
    "Display": (DisplayOptions, LogprobOptions),
}
# for language models only
_LEFT_OUT = ("profile", "weights", "tensor_parallel", "device_map", "stop", "stop_token_ids", "ignore_eos")
_CHANGES: Changes = {
    "target": {"help": "encoder-decoder model that translates; default: the bundled one"},
    "draft": {
        "help": "a drafter trained for the target ('train spec-drafter'), or another model with its tokenizer",
    },
    "max_new_tokens": {"default": None, "help": "most tokens of a translation; default: the model's own limit"},
    "input": {"help": "text with one sentence per line; - is standard input"},
    "output": {"help": "text with the translations, line by line; a stopped run resumes from OUTPUT.partial"},
    "batch_size": {"help": "sentences that are translated at a time"},
}


@click.command(name="translate", cls=Sectioned, sections=SECTIONS)
@click.argument("text", type=TEXT, required=False)
@section_options(SECTIONS, leave_out=_LEFT_OUT, changes=_CHANGES)
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
    settings = Settings.of({**options, "shape": _shape(options["k"], options["shape"])}, given(ctx), "translation")
    single = text is not None and text != "-"
    check_input(settings, text, single=single)
    if text is not None and not text.strip():
        raise ConfigError("the text is empty: give a sentence to translate")
    if text is not None and single:
        check_models("translation", settings.models.target, settings.models.draft)
        with loading_libraries():
            from draftwood.cli.single import run_single
        run_single(settings, text)
        return
    with loading_libraries():
        from draftwood.cli.job.file import run_file
    if run_file(settings):
        ctx.exit(1)


def _shape(k: int | None, shape: str | None) -> str | None:
    """The shape of a draft, which a block has from its length."""
    if k is None:
        return shape
    if not 1 <= k <= MAX_NODES:
        raise ConfigError(f"k is {k}: give a number of tokens from 1 to {MAX_NODES}")
    if shape is not None:
        raise ConfigError(f"--k {k} and --shape {shape} both set the length of a block: leave one of them out")
    return str(k)
