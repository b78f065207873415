"""``draftwood bench``: its options are those of :class:`BenchConfig`, those of its subcommands have classes of their own.

Nothing heavy is imported before a benchmark runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from draftwood.bench.config import BenchConfig, VerifyConfig
from draftwood.errors import ConfigError
from draftwood.options import dataclass_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

    from draftwood.api import Pair
    from draftwood.bench.run import Bench, Log

INTERRUPTED = 130


@click.group(name="bench", invoke_without_command=True, subcommand_metavar="[acceptance|verify ...]")
@dataclass_options(BenchConfig)
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Measure block efficiency and speed, against plain decoding and against transformers.

    `draftwood bench acceptance` compares drawn trees exactly, `draftwood bench verify` times the verifiers alone.
    """
    if context.invoked_subcommand is None:
        _bench(BenchConfig(**options))


@command.command(name="acceptance")
@dataclass_options(BenchConfig, leave_out=("preset", "repeats"))
def acceptance_command(**options: Any) -> None:
    """Measure the expected block efficiency of drawn trees, every method on the same texts."""
    from draftwood.api import load
    from draftwood.bench.acceptance import compare, drawn
    from draftwood.bench.document import replace_file
    from draftwood.bench.prompts import read_prompts
    from draftwood.bench.settings import plan
    from draftwood.loading import LoadOptions, quiet_loading

    config = BenchConfig(**{"preset": "paper", **options})
    quiet_loading()
    pair = load(config.target, config.draft, options=LoadOptions(dtype=config.dtype, device=config.device))
    scale = config.scale()
    found = plan("paper", config.method_names(), has_draft=pair.draft is not None, budgets=config.node_budgets())
    settings, temperatures = drawn(found), [t for t in scale.temperatures if t > 0]
    if not settings or not temperatures:
        raise ConfigError("nothing is left to measure: name drawn methods and temperatures above 0, or leave both out")
    prompts = read_prompts(config, pair.encode, pair.decoder().max_length)
    config.output.mkdir(parents=True, exist_ok=True)
    with _bar() as progress:
        task = progress.add_task("acceptance", total=len(settings) * len(temperatures))
        advance = partial(progress.update, task, advance=1, refresh=True)
        report = compare(pair, settings, prompts, temperatures, scale.max_new_tokens, config.seed, advance)
    replace_file(config.output / "acceptance.md", report)
    click.echo(report)


@command.command(name="verify")
@dataclass_options(VerifyConfig)
def verify_command(**options: Any) -> None:
    """Measure what verifying a tree costs at real vocabularies; no model is needed."""
    from draftwood.bench.document import replace_file, text_of
    from draftwood.bench.verify_step import markdown, measure

    config = VerifyConfig(**options)
    config.output.mkdir(parents=True, exist_ok=True)
    with _bar() as progress:
        task = progress.add_task("verify", total=(config.repeats + 1) * len(config.vocab))
        document = measure(config, lambda: progress.update(task, advance=1, refresh=True))
    replace_file(config.output / "verify.json", text_of(document))
    replace_file(config.output / "verify.md", markdown(document))
    click.echo(markdown(document))


def _bench(config: BenchConfig) -> None:
    from draftwood.api import load
    from draftwood.loading import LoadOptions, quiet_loading

    quiet_loading()
    options = LoadOptions(dtype=config.dtype, device=config.device, profile="none")  # every method is named
    _measure(config, load(config.target, config.draft, options=options))


def _measure(config: BenchConfig, pair: Pair) -> None:
    """Run, and write what there is however it ends."""
    from draftwood.bench.document import Writer
    from draftwood.bench.prompts import read_prompts
    from draftwood.bench.run import Bench, Log
    from draftwood.bench.settings import plan
    from draftwood.machine import load_average

    scale = config.scale()
    settings = plan(config.preset, config.method_names(), has_draft=pair.draft is not None, budgets=config.node_budgets())
    cases = [(setting, temperature) for temperature in scale.temperatures for setting in settings]
    prompts = read_prompts(config, pair.encode, pair.decoder().max_length)
    bench = Bench(
        pair=pair,
        cases=cases,
        prompts=prompts,
        repeats=scale.repeats,
        max_new_tokens=scale.max_new_tokens,
        seed=config.seed,
    )
    log = Log(cases=cases)
    writer = Writer(config=config, pair=pair, prompts=prompts, log=log, load_before=load_average())
    click.echo(f"{len(settings)} settings, {len(prompts)} prompts, {bench.steps} texts", err=True)
    config.output.mkdir(parents=True, exist_ok=True)  # before the work, not after hours of it
    partial = True
    try:
        _with_progress(bench, log, lambda: writer.write(partial=True))
        partial = False
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        if any(log.samples):  # a run that ended while warming up leaves an older result alone
            writer.write(partial=partial)
            click.echo(f"{'Partial report' if partial else 'Report'}: {config.output / 'bench.md'}", err=partial)


def _with_progress(bench: Bench, log: Log, on_repeat: Callable[[], object]) -> None:
    with _bar() as progress:
        task = progress.add_task("bench", total=bench.steps)
        bench.run(log, lambda: progress.update(task, advance=1, refresh=True), on_repeat)


def _bar() -> Progress:
    """A bar on stderr, so that stdout stays free for results."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    shown = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Drawn between two measurements: a thread that redraws on its own would compete with the models.
    return Progress(*shown, console=Console(stderr=True), auto_refresh=False)
