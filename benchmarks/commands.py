"""The smaller commands; their options are those of the classes in :mod:`benchmarks.config`.

Nothing heavy is imported before a benchmark runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.config import BenchConfig, CostConfig, InflateConfig, VerifyConfig
from benchmarks.opening import INTERRUPTED, encoder, on_backend, open_pair, quiet
from benchmarks.start.config import StartConfig
from benchmarks.tracing.config import TraceConfig
from draftwood.cli.options import dataclass_options
from draftwood.cli.progress import steps

if TYPE_CHECKING:
    from draftwood.api import Pair


@click.command(name="acceptance")
@dataclass_options(BenchConfig, leave_out=("preset", "repeats", "batch"))
def acceptance(**options: Any) -> None:
    """Compute the expected block efficiency of trees of a fixed budget, every method on the same texts."""
    from benchmarks.acceptance import check_methods, compare
    from benchmarks.prompts import read_prompts
    from benchmarks.settings import plan
    from draftwood.core.files import replace_file

    config = BenchConfig(**options)
    chosen, budgets, scale = config.method_names(), config.node_budgets(), config.scale()
    check_methods(chosen)
    pair = open_pair(config, config.only_backend("acceptance"))
    settings = plan("acceptance", chosen, has_draft=pair.draft is not None, budgets=budgets)
    prompts = read_prompts(config, encoder(config, pair), pair.target.max_length)
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("acceptance", len(settings) * len(scale.temperatures)) as advance:
        report = compare(pair, settings, prompts, scale.temperatures, scale.max_new_tokens, config.seed, advance)
    replace_file(config.output / "acceptance.md", report)
    click.echo(report)


@click.command(name="sweep")
@dataclass_options(BenchConfig, leave_out=("preset", "methods", "budgets", "batch"))
def sweep(**options: Any) -> None:
    """Compare auto with a grid of fixed settings."""
    from benchmarks.prompts import read_prompts
    from benchmarks.sweep import Sweep

    config = BenchConfig(**options)
    pair = open_pair(config, config.only_backend("sweep"), profile="auto")
    prompts = read_prompts(config, encoder(config, pair), pair.target.max_length)
    whole = Sweep(config=config, pair=pair, prompts=prompts)
    config.output.mkdir(parents=True, exist_ok=True)
    try:
        with steps("sweep", whole.steps) as advance:
            whole.run(advance)
    except KeyboardInterrupt:
        click.echo(f"Interrupted: unless it was warming up, {config.output / 'sweep.md'} is a partial report", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    click.echo((config.output / "sweep.md").read_text(encoding="utf-8"))


@click.command(name="verify")
@dataclass_options(VerifyConfig)
def verify(**options: Any) -> None:
    """Measure what verifying a tree costs at real vocabularies; no model is needed."""
    from benchmarks.verify_step import markdown, measure

    config = VerifyConfig(**options)
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("verify", (config.repeats + 1) * len(config.vocab)) as advance:
        document = measure(config, advance)
    _report(config.output, "verify", document, markdown(document))


@click.command(name="cost")
@dataclass_options(CostConfig)
def cost(**options: Any) -> None:
    """Measure what a forward of the target costs by its tokens and its context, and how fast the memory is read."""
    from benchmarks.cost import markdown, measure

    config = CostConfig(**options)
    backend, *others = config.backends()
    pair = open_pair(config, backend)
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("cost", len(config.context)) as advance:
        pairs: dict[str, Pair] = {backend: pair, **{name: on_backend(pair, name) for name in others}}
        pairs |= {f"native {name}": on_backend(pair, "native", name) for name in config.weights}
        document = measure(config, pairs, advance)
    _report(config.output, "cost", document, markdown(document))


@click.command(name="start")
@dataclass_options(StartConfig)
def start(**options: Any) -> None:
    """Measure starting: seconds to the first token and memory, of transformers and of both backends, a process each."""
    from benchmarks.start.run import markdown, measure

    config = StartConfig(**options)
    quiet()
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("start", config.repeats * len(config.system_names())) as advance:
        document = measure(config, advance)
    _report(config.output, "start", document, markdown(document))


@click.command(name="trace")
@dataclass_options(TraceConfig)
def trace(**options: Any) -> None:
    """Measure what traces cost, off and on, in processor time: the ways to write a text in turn, text by text."""
    from benchmarks.tracing.run import CASES, markdown, measure

    config = TraceConfig(**options)
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("trace", config.repeats * len(CASES)) as advance:
        document = measure(config, advance)
    _report(config.output, "trace", document, markdown(document))


@click.command(name="inflate")
@dataclass_options(InflateConfig)
def inflate(**options: Any) -> None:
    """Write a copy of a Llama model with its scores and a larger model's cost, to measure what a draft would save there."""
    from benchmarks.inflate import write_pair

    config = InflateConfig(**options)
    quiet()
    for label, folder in write_pair(config):
        click.echo(f"{folder}: {label}")


def _report(folder: Path, name: str, document: dict[str, Any], report: str) -> None:
    from benchmarks.record import save

    save(folder, name, document, report)
    click.echo(report)
