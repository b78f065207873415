"""``python -m benchmarks generate``; its options are those of :class:`BenchConfig`.

Nothing heavy is imported before the benchmark runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from benchmarks.config import BenchConfig
from benchmarks.opening import INTERRUPTED, encoder, on_backend, open_pair
from draftwood.cli.options import dataclass_options
from draftwood.cli.progress import steps
from draftwood.core.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.run import Bench
    from draftwood.api import Pair


@click.command(name="generate")
@dataclass_options(BenchConfig)
def command(**options: Any) -> None:
    """Measure block efficiency and speed of methods, trees and other programs on the same prompts and weights.

    Asked by docs/speed.md.
    """
    config = BenchConfig(**options)
    backend, *others = config.backends()
    pair = open_pair(config, backend)
    _measure(config, pair, {name: on_backend(pair, name) for name in others})


def _measure(config: BenchConfig, pair: Pair, others: Mapping[str, Pair]) -> None:
    """Open the models and programs, and report the missing ones."""
    from benchmarks.engines import engines
    from benchmarks.prompts import read_prompts
    from benchmarks.run import Bench
    from benchmarks.settings import on_backends, plan

    temperatures = config.temperature_values()
    settings = plan(config.method_names(), has_draft=pair.draft is not None)
    prompts = read_prompts(config, encoder(config, pair), pair.target.max_length)
    with engines(settings, pair, temperatures, prompts[0].tokens) as found:
        for method, why in found.skipped.items():
            click.echo(f"Left out: {method}, {why}", err=True)
        kept = on_backends([s for s in settings if found.takes(s)], config.backends())
        if not kept:
            raise ConfigError("nothing is left to measure: see above why, or choose other methods")
        bench = Bench(
            pair=pair,
            cases=[(setting, temperature) for temperature in temperatures for setting in kept],
            prompts=prompts,
            repeats=config.repeats,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
            others=others,
            engines=found.opened,
        )
        _run(config, bench, found.skipped)


def _run(config: BenchConfig, bench: Bench, skipped: Mapping[str, str]) -> None:
    """Run, and write the results so far even after an error."""
    from benchmarks.document import Writer
    from benchmarks.run import Log
    from draftwood.hardware.machine import load_average

    pair, prompts, log = bench.pair, bench.prompts, Log(cases=list(bench.cases))
    writer = Writer(
        config=config, pair=pair, prompts=prompts, log=log, load_before=load_average(), skipped=skipped, others=bench.others
    )
    settings = len({setting.name for setting, _ in bench.cases})
    click.echo(f"{settings} settings, {len(prompts)} prompts, {bench.steps} texts", err=True)
    config.output.mkdir(parents=True, exist_ok=True)  # before the work, not after hours of it
    partial = True
    try:
        with steps("generate", bench.steps) as advance:
            bench.run(log, advance, lambda: writer.write(partial=True))
        partial = False
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        if any(log.samples):  # a run that ended while warming up leaves an older result alone
            writer.write(partial=partial)
            click.echo(f"{'Partial report' if partial else 'Report'}: {config.output / 'bench.md'}", err=partial)
