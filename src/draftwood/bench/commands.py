"""``draftwood bench``: its options are those of :class:`BenchConfig`, those of its subcommands have classes of their own.

Nothing heavy is imported before a benchmark runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from draftwood.bench.config import BenchConfig, VerifyConfig
from draftwood.bench.progress import steps
from draftwood.bench.translate.commands import translate_command
from draftwood.errors import ConfigError
from draftwood.options import dataclass_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftwood.api import Pair
    from draftwood.bench.run import Bench, Log

INTERRUPTED = 130


@click.group(name="bench", invoke_without_command=True, subcommand_metavar="[acceptance|sweep|translate|verify ...]")
@dataclass_options(BenchConfig)
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Measure block efficiency and speed, against plain decoding and against transformers.

    `draftwood bench acceptance` compares trees on the same texts, `draftwood bench sweep` compares auto with fixed settings,
    `draftwood bench translate` measures translation, `draftwood bench verify` times the verifiers alone.
    """
    if context.invoked_subcommand is None:
        _bench(BenchConfig(**options))
        return
    from_line = (name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    if given := ", ".join("--" + name.replace("_", "-") for name in from_line):
        part = context.invoked_subcommand
        raise ConfigError(
            f"{given} came before {part!r}, where only 'draftwood bench' itself reads options: give them behind {part!r} "
            f"('draftwood bench {part} --help' lists those it has), or leave them out"
        )


command.add_command(translate_command)


@command.command(name="acceptance")
@dataclass_options(BenchConfig, leave_out=("preset", "repeats"))
def acceptance_command(**options: Any) -> None:
    """Measure the expected block efficiency of trees of a fixed budget, every method on the same texts."""
    from draftwood.api import load
    from draftwood.bench.acceptance import check_methods, compare
    from draftwood.bench.document import replace_file
    from draftwood.bench.prompts import read_prompts
    from draftwood.bench.settings import plan
    from draftwood.loading import LoadOptions, quiet_loading

    config = BenchConfig(**{"preset": "paper", **options})
    check_methods(config.method_names())
    quiet_loading()
    loading = LoadOptions(dtype=config.dtype, device=config.device, backend=config.backend)
    pair = load(config.target, config.draft, options=loading)
    scale = config.scale()
    chosen, budgets = config.method_names(), config.node_budgets()
    settings = plan("acceptance", chosen, has_draft=pair.draft is not None, budgets=budgets, block=_block(pair))
    prompts = read_prompts(config, pair.encode, pair.decoder().max_length)
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("acceptance", len(settings) * len(scale.temperatures)) as advance:
        report = compare(pair, settings, prompts, scale.temperatures, scale.max_new_tokens, config.seed, advance)
    replace_file(config.output / "acceptance.md", report)
    click.echo(report)


@command.command(name="sweep")
@dataclass_options(BenchConfig, leave_out=("preset", "methods", "budgets"))
def sweep_command(**options: Any) -> None:
    """Compare auto with a grid of fixed settings, and with plain decoding where the draft is untrained."""
    from draftwood.api import load
    from draftwood.bench.prompts import read_prompts
    from draftwood.bench.sweep import Sweep, untrained
    from draftwood.loading import LoadOptions, quiet_loading

    config = BenchConfig(**{"preset": "paper", **options})
    quiet_loading()
    loading = LoadOptions(dtype=config.dtype, device=config.device, backend=config.backend)
    pair = load(config.target, config.draft, options=loading)
    blind = untrained(pair, config.seed)
    prompts = read_prompts(config, pair.encode, pair.decoder().max_length)
    sweep = Sweep(config=config, pair=pair, blind=blind, prompts=prompts)
    config.output.mkdir(parents=True, exist_ok=True)
    try:
        with steps("sweep", sum(bench.steps for bench in sweep.benches())) as advance:
            sweep.run(advance)
    except KeyboardInterrupt:
        click.echo(f"Interrupted: unless it was warming up, {config.output / 'sweep.md'} is a partial report", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    click.echo((config.output / "sweep.md").read_text(encoding="utf-8"))


@command.command(name="verify")
@dataclass_options(VerifyConfig)
def verify_command(**options: Any) -> None:
    """Measure what verifying a tree costs at real vocabularies; no model is needed."""
    from draftwood.bench.document import replace_file, text_of
    from draftwood.bench.verify_step import markdown, measure

    config = VerifyConfig(**options)
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("verify", (config.repeats + 1) * len(config.vocab)) as advance:
        document = measure(config, advance)
    replace_file(config.output / "verify.json", text_of(document))
    replace_file(config.output / "verify.md", markdown(document))
    click.echo(markdown(document))


def _bench(config: BenchConfig) -> None:
    from draftwood.api import load
    from draftwood.loading import LoadOptions, quiet_loading

    quiet_loading()
    options = LoadOptions(dtype=config.dtype, device=config.device, backend=config.backend, profile="none")
    _measure(config, load(config.target, config.draft, options=options))


def _block(pair: Pair) -> int | None:
    from draftwood.models import BlockRunner

    return pair.draft.block if isinstance(pair.draft, BlockRunner) else None


def _measure(config: BenchConfig, pair: Pair) -> None:
    """Run, and write what there is however it ends."""
    from draftwood.bench.document import Writer
    from draftwood.bench.prompts import read_prompts
    from draftwood.bench.run import Bench, Log
    from draftwood.bench.settings import plan
    from draftwood.machine import load_average

    scale = config.scale()
    chosen, budgets = config.method_names(), config.node_budgets()
    settings = plan(config.preset, chosen, has_draft=pair.draft is not None, budgets=budgets, block=_block(pair))
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
    with steps("bench", bench.steps) as advance:
        bench.run(log, advance, on_repeat)
