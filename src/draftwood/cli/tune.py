"""``draftwood tune``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.console import write_line
from draftwood.cli.job.lines import read_texts
from draftwood.cli.options import dataclass_options, pick
from draftwood.cli.progress import duration, shares
from draftwood.cli.settings import Models, load_fixed
from draftwood.core.errors import ConfigError
from draftwood.core.files import check_writable
from draftwood.core.settings import LoadOptions
from draftwood.tune.prompts import built_in
from draftwood.tune.sizes import Sizes

if TYPE_CHECKING:
    from draftwood.tune.run import Findings


@click.command(name="tune")
@dataclass_options(Models, LoadOptions, leave_out=("profile",))
@click.option(
    "--input",
    type=click.Path(path_type=Path),
    help="JSON lines with a prompt each, as for generate; default: built-in stories and sums",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="the profile; default: a file in the user's cache, used automatically"
)
@dataclass_options(Sizes)
def command(input: Path | None, out: Path | None, **options: Any) -> None:
    """Find the fastest method of a pair of models on this machine, and write it into a profile.

    Plain decoding, prompt lookup and the adaptive tree continue the same prompts in turn, for about --minutes. At each
    temperature plain decoding is chosen, unless another one is faster by more than the spread of its texts.

    Afterwards --method auto uses the choice for the nearest temperature when this pair is loaded here.
    """
    models, loading, sizes = pick(Models, options), pick(LoadOptions, options), pick(Sizes, options)
    prompts = built_in(sizes.prompts) if input is None else read_texts(input)[: sizes.prompts]
    if out is not None:
        check_writable(out, "--out")
    pair = load_fixed(models, loading)

    from draftwood.cli.results import name_of
    from draftwood.engine.knowledge import default_path, save
    from draftwood.hardware.machine import versions
    from draftwood.tune.run import tune

    profile_key = pair.known.profile_key
    if profile_key is None:
        raise ConfigError(
            f"a profile belongs to model files, and those of {models.target} or its draft were not found: give folders"
        )
    path = default_path(profile_key) if out is None else out
    click.echo(f"Measuring for about {duration(60 * sizes.minutes)} (--minutes).", err=True)
    with shares("tune") as on_progress:
        found = tune(pair, [pair.encode(text) for text in prompts], sizes, on_progress)
    rest = {"versions": versions(), "sizes": asdict(sizes), **found.to_json()}
    save(path, profile_key, choices=found.choices, **rest)
    write_line(_table(found))
    write_line("\n" + "\n".join(found.changes(pair.known.choices, name_of)))
    used = "It is used from now on" if out is None else f"Use it with --profile {path}"
    write_line(f"Profile: {path}, measured with {pair.target.engine}. {used}; --profile none leaves it out.")


def _table(found: Findings) -> str:
    from draftwood.cli.results import name_of
    from draftwood.tune.compare import PLAIN
    from draftwood.tune.run import figures_of

    lines = ["temperature  method      texts  tokens/round  tokens/s  ÷ plain"]
    choices, last = found.choices, None
    for temperature, method, texts in found.ranked():
        shown = "" if temperature == last else f"{temperature:g}"
        last = temperature
        chosen = "  <- choice" if method == choices[temperature] else ""
        of, plain = figures_of(texts), figures_of(found.measured[temperature][PLAIN])
        ratio = of["tokens_per_second"] / plain["tokens_per_second"]
        figures = f"{len(texts):>7}{of['tokens_per_round']:>14.2f}{of['tokens_per_second']:>10.0f}{ratio:>9.2f}"
        lines.append(f"{shown:<13}{name_of(method):<10}{figures}{chosen}")
    return "\n".join(lines)
