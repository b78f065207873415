"""``draftwood translate``."""

from __future__ import annotations

from typing import Any

import click

from draftwood.cli.generate import write_texts
from draftwood.cli.options import Changes, Sectioned, Sections
from draftwood.cli.output_options import LogprobOptions
from draftwood.cli.settings import DisplayOptions, Files, Models, Settings, check_input
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions, Method

SECTIONS: Sections = {
    "Models": (Models, LoadOptions),
    "Drafting": (Method,),
    "Length": (Limits,),
    "Files": (Files,),
    "Display": (DisplayOptions, LogprobOptions),
}
# for language models only
_LEFT_OUT = ("profile", "weights", "activations", "device_map", "stop", "stop_token_ids", "ignore_eos")
_CHANGES: Changes = {
    "target": {"help": "encoder-decoder model that translates; default: the bundled one"},
    "draft": {"help": "a block drafter made for the target, or another model with its tokenizer"},
    "shape": {"help": "12 is the length of a block, whose default is the draft's own; 2-2-2 branching, 3x5 width x length"},
    "max_new_tokens": {"default": None, "help": "most tokens of a translation; default: the model's own limit"},
    "input": {"help": "text with one sentence per line; - is standard input"},
    "output": {"help": "text with the translations, line by line; a stopped run resumes from OUTPUT.partial"},
    "batch_size": {"help": "sentences that are translated at a time"},
}


@click.command(name="translate", cls=Sectioned, sections=SECTIONS, leave_out=_LEFT_OUT, changes=_CHANGES)
@click.argument("text", required=False)
def command(text: str | None, **options: Any) -> None:
    """Translate TEXT, or every line of standard input if TEXT is -, or every line of a file (--input).

    The default is the bundled pair of models, which translates German to English. Decoding is greedy: the translation is
    the target's own, unless --beta or --tau accept tokens whose scores are close to its best. A text is translated in one
    piece; single sentences work best.

    With --input, line n of --output (or of standard output) translates line n. Lines that are too long or not UTF-8 are
    reported on standard error and left empty, and the exit status is 1. With --json every line is a JSON object. The output
    file appears when all lines are done. The same command resumes a stopped run.
    """
    settings = Settings.of(options, "translation")
    single = text is not None and text != "-"
    check_input(settings, text, single=single)
    if text is not None and not text.strip():
        raise ConfigError("the text is empty: give a sentence to translate")
    write_texts(settings, text if single else None)
