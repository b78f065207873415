"""``draftwood tune``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import click

from draftwood.bench.prompts import BUILT_IN
from draftwood.cli.settings import Models
from draftwood.core.errors import ConfigError
from draftwood.core.options import dataclass_options, pick
from draftwood.core.settings import LoadOptions
from draftwood.tune.sizes import Sizes

if TYPE_CHECKING:
    from draftwood.loading.profile import ProfileKey
    from draftwood.tune.run import Findings, OnProgress


@final
@dataclass(frozen=True, kw_only=True)
class Files:
    """Where prompts come from and where the profile goes."""

    input: Path | None = field(
        default=None, metadata={"help": "JSON lines with a prompt each, as for generate; some stories and sums without it"}
    )
    out: Path | None = field(
        default=None, metadata={"help": "the profile; without it a file in the user's cache, which is then found by itself"}
    )


@click.command(name="tune", short_help="Measure what is fastest for a pair on this machine, and remember it.")
@dataclass_options(Models)
@dataclass_options(LoadOptions, leave_out=("profile",))
@dataclass_options(Files)
@dataclass_options(Sizes)
def command(**options: Any) -> None:
    """Measure what is fastest for a pair of models on this machine, and write it into a profile.

    First what drafting, scoring and verifying cost, then what the target accepts of trees of many shapes. From both follows
    what every shape is expected to bring. The best shape of each kind, trees of other kinds, prompt lookup and plain
    decoding are then run, and what they do is shown beside what was expected; what was fastest becomes the choice.

    From then on --method auto takes the choice for the nearest temperature when this pair is loaded here.
    """
    from draftwood.api import load
    from draftwood.core.machine import set_threads
    from draftwood.loading.models import quiet_loading
    from draftwood.loading.profile import default_path
    from draftwood.tune.run import Tuning

    models, loading = pick(Models, options), pick(LoadOptions, options)
    files, sizes = pick(Files, options), pick(Sizes, options)
    prompts = _prompts(files.input, sizes.prompts)
    _check_writable(files.out)
    quiet_loading()
    set_threads(loading.threads)
    pair = load(models.target, models.draft, options=replace(loading, profile="none"))
    profile_key = pair.profile_key
    if profile_key is None:
        raise ConfigError(f"a profile belongs to files, but those of {models.target} or its draft are nowhere: give folders")
    path = default_path(profile_key) if files.out is None else files.out
    path.parent.mkdir(parents=True, exist_ok=True)
    with _progress() as on_progress:
        found = Tuning(pair, [pair.encode(text) for text in prompts], sizes, on_progress).findings()
    _write(path, profile_key, found, sizes)
    click.echo(_told(found))
    used = "It is used from now on" if files.out is None else f"Use it with --profile {path}"
    click.echo(f"\nProfile: {path}, measured with {pair.target.engine}. {used}; --profile none leaves it out.")


def _prompts(path: Path | None, most: int) -> list[str]:
    """The first prompts of the file, or the built-in ones, the sources in turn."""
    if path is not None:
        from draftwood.cli.prompts import read_texts

        return read_texts(path)[:most]
    return [text for text in chain.from_iterable(zip_longest(*BUILT_IN.values())) if text][:most]


def _check_writable(out: Path | None) -> None:
    """Better now than after minutes of work."""
    if out is None:
        return
    if not out.parent.is_dir():
        raise ConfigError(f"output folder {out.parent} does not exist: create it first, or name another --out")
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise ConfigError(f"output {out} cannot be written: name another --out")


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """A bar on stderr, drawn between two texts: a thread that redraws on its own would compete with the models."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<10}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("tune", total=1.0)
        yield lambda phase, done: bar.update(task, description=phase, completed=min(done, 1.0), refresh=True)


def _write(path: Path, profile_key: ProfileKey, found: Findings, sizes: Sizes) -> None:
    from draftwood.bench.document import replace_file, text_of
    from draftwood.core.machine import versions
    from draftwood.loading.profile import document

    rest = {"versions": versions(), "sizes": asdict(sizes), **found.to_json()}
    replace_file(path, text_of(document(profile_key, found.choices, rest)))


def _told(found: Findings) -> str:
    from draftwood.cli.results import name_of

    lines = [
        "                                                   tokens per round      tokens/s",
        "temperature  method                      texts  expected  measured  expected  measured  deviation",
    ]
    choices, last = found.choices, None
    for temperature, method, expected, speed in found.checks():
        shown = "" if temperature == last else f"{temperature:g}"
        last = temperature
        figures: Sequence[str] = ["-", f"{speed.tokens_per_round:.2f}", "-", f"{speed.tokens_per_second:.0f}", "-"]
        if expected is not None:
            ahead, deviation = expected.tokens_per_second, speed.tokens_per_second / expected.tokens_per_second - 1
            figures = [f"{expected.tokens_per_round:.2f}", figures[1], f"{ahead:.0f}", figures[3], f"{deviation:+.0%}"]
        chosen = "  <- choice" if method == choices[temperature] else ""
        columns = "".join(f"{text:>10}" for text in figures)
        lines.append(f"{shown:<13}{name_of(method):<26}{speed.texts:>7}{columns}{chosen}")
    return "\n".join(lines)
