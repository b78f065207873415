"""``draftwood bench``: its options are those of :class:`BenchConfig`, those of its subcommands have classes of their own.

Nothing heavy is imported before a benchmark runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from draftwood.bench.config import BenchConfig, CostConfig, InflateConfig, PlotConfig, VerifyConfig
from draftwood.bench.progress import steps
from draftwood.bench.start.config import StartConfig
from draftwood.bench.translate.commands import translate_command
from draftwood.core.errors import ConfigError
from draftwood.core.options import dataclass_options
from draftwood.core.settings import LoadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from draftwood.api import Pair
    from draftwood.bench.run import Bench, Log

INTERRUPTED = 130


@click.group(
    name="bench",
    invoke_without_command=True,
    subcommand_metavar="[acceptance|cost|inflate|plot|start|sweep|translate|verify ...]",
)
@dataclass_options(BenchConfig)
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Measure block efficiency and speed, against plain decoding and against transformers.

    `draftwood bench acceptance` compares trees on the same texts, `draftwood bench sweep` compares auto with fixed settings,
    `draftwood bench translate` measures translation, `draftwood bench verify` times the verifiers alone, `draftwood bench
    inflate` writes a copy of a model that costs more, `draftwood bench cost` times forwards of the target, `draftwood bench
    start` measures time to the first token and memory, and `draftwood bench plot` draws results.
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
@dataclass_options(BenchConfig, leave_out=("preset", "repeats", "batch"))
def acceptance_command(**options: Any) -> None:
    """Measure the expected block efficiency of trees of a fixed budget, every method on the same texts."""
    from draftwood.api import load
    from draftwood.bench.acceptance import check_methods, compare
    from draftwood.bench.document import replace_file
    from draftwood.bench.prompts import read_prompts
    from draftwood.bench.settings import plan

    config = BenchConfig(**{"preset": "paper", **options})
    check_methods(config.method_names())
    _start()
    loading = LoadOptions(dtype=config.dtype, device=config.device, backend=config.only_backend("acceptance"))
    pair = load(config.target, config.draft, options=loading)
    scale = config.scale()
    chosen, budgets = config.method_names(), config.node_budgets()
    settings = plan("acceptance", chosen, has_draft=pair.draft is not None, budgets=budgets, block=_block(pair))
    prompts = read_prompts(config, pair.encode, pair.target.max_length)
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("acceptance", len(settings) * len(scale.temperatures)) as advance:
        report = compare(pair, settings, prompts, scale.temperatures, scale.max_new_tokens, config.seed, advance)
    replace_file(config.output / "acceptance.md", report)
    click.echo(report)


@command.command(name="sweep")
@dataclass_options(BenchConfig, leave_out=("preset", "methods", "budgets", "batch"))
def sweep_command(**options: Any) -> None:
    """Compare auto with a grid of fixed settings, and with plain decoding where the draft is untrained."""
    from draftwood.api import load
    from draftwood.bench.prompts import read_prompts
    from draftwood.bench.sweep import Sweep, untrained

    config = BenchConfig(**{"preset": "paper", **options})
    _start()
    loading = LoadOptions(dtype=config.dtype, device=config.device, backend=config.only_backend("sweep"))
    pair = load(config.target, config.draft, options=loading)
    blind = untrained(pair, config.seed)
    prompts = read_prompts(config, pair.encode, pair.target.max_length)
    sweep = Sweep(config=config, pair=pair, blind=blind, prompts=prompts)
    config.output.mkdir(parents=True, exist_ok=True)
    try:
        with steps("sweep", sweep.steps) as advance:
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


@command.command(name="cost")
@dataclass_options(CostConfig)
def cost_command(**options: Any) -> None:
    """Measure what a forward of the target costs by its tokens and its context, how fast the memory is read, and, with a
    draft, what both take at the same time."""
    from draftwood.api import load
    from draftwood.bench import overlap
    from draftwood.bench.cost import markdown, measure
    from draftwood.bench.document import replace_file, text_of

    config = CostConfig(**options)
    _start()
    backend, *others = config.backends()
    pair = load(
        config.target,
        config.draft,
        options=LoadOptions(dtype=config.dtype, device=config.device, backend=backend, profile="none"),
    )
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("cost", len(config.context) + 1) as advance:
        pairs: dict[str, Pair] = {backend: pair, **{name: _again(pair, name) for name in others}}
        overlap.check_room(pairs, min(config.context))
        document = measure(config, pairs, advance)
        beside = overlap.measure(pairs, min(config.context), config.tokens, config.repeats)
        advance()
    report = "\n".join(filter(None, (markdown(document), overlap.markdown(beside))))
    replace_file(config.output / "cost.json", text_of(document | {"overlap": beside}))
    replace_file(config.output / "cost.md", report)
    click.echo(report)


@command.command(name="plot")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@dataclass_options(PlotConfig)
def plot_command(files: tuple[Path, ...], **options: Any) -> None:
    """Draw FILES, bench.json and cost.json of any runs: speed by size, block efficiency by nodes, cost by tokens."""
    from draftwood.bench.plot import draw, read

    config = PlotConfig(**options)
    for path in draw(read(files), config.output, config.form):
        click.echo(str(path))


@command.command(name="start")
@dataclass_options(StartConfig)
def start_command(**options: Any) -> None:
    """Measure starting: seconds to the first token and memory, of transformers and of both backends, a process each."""
    from draftwood.bench.document import replace_file, text_of
    from draftwood.bench.start.run import markdown, measure

    config = StartConfig(**options)
    _start()
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("start", config.repeats * len(config.system_names())) as advance:
        document = measure(config, advance)
    replace_file(config.output / "start.json", text_of(document))
    replace_file(config.output / "start.md", markdown(document))
    click.echo(markdown(document))


@command.command(name="inflate")
@dataclass_options(InflateConfig)
def inflate_command(**options: Any) -> None:
    """Write a copy of a Llama model that has its distribution and a larger model's cost, to measure what a draft would save
    there."""
    from draftwood.bench.inflate import write_pair

    config = InflateConfig(**options)
    _start()
    for told, folder in write_pair(config):
        click.echo(f"{folder}: {told}")


def _start() -> None:
    from draftwood.core.machine import set_threads
    from draftwood.loading.models import quiet_loading

    quiet_loading()
    set_threads(None)


def _bench(config: BenchConfig) -> None:
    from draftwood.api import load

    _start()
    backend, *others = config.backends()
    options = LoadOptions(dtype=config.dtype, device=config.device, backend=backend, profile="none")
    pair = load(config.target, config.draft, options=options)
    _measure(config, pair, {name: _again(pair, name) for name in others})


def _again(pair: Pair, backend: Literal["torch", "openvino"]) -> Pair:
    """The same models, run by another backend."""
    from draftwood.api import Pair
    from draftwood.runners.factory import make_runners

    model, draft = pair.target.model, None if pair.draft is None else pair.draft.model
    return Pair(model, draft, pair.tokenizer, runners=make_runners(model, draft, backend=backend))


def _block(pair: Pair) -> int | None:
    from draftwood.runners.protocols import BlockRunner

    return pair.draft.block if isinstance(pair.draft, BlockRunner) else None


def _measure(config: BenchConfig, pair: Pair, others: Mapping[str, Pair]) -> None:
    """Open what is measured, and say what is left out."""
    from draftwood.bench.batches import at_batches, batched, left_out
    from draftwood.bench.engines import engines
    from draftwood.bench.prompts import read_prompts
    from draftwood.bench.run import Bench
    from draftwood.bench.settings import on_backends, plan

    scale = config.scale()
    chosen, budgets = config.method_names(), config.node_budgets()
    planned = plan(config.preset, chosen, has_draft=pair.draft is not None, budgets=budgets, block=_block(pair))
    settings = at_batches(planned, config.batch_sizes())
    prompts = read_prompts(config, pair.encode, pair.target.max_length)
    first = [prompts[p].tokens for p in batched(prompts, config.batch_sizes()[-1])[0]]
    with engines(settings, pair, scale.temperatures, first) as found:
        skipped = found.skipped | left_out(planned, config.batch_sizes())
        for method, why in skipped.items():
            click.echo(f"Left out: {method}, {why}", err=True)
        kept = on_backends([s for s in settings if found.takes(s)], config.backends())
        if not kept:
            raise ConfigError("nothing is left to measure: see above why, or choose other methods")
        bench = Bench(
            pair=pair,
            cases=[(setting, temperature) for temperature in scale.temperatures for setting in kept],
            prompts=prompts,
            repeats=scale.repeats,
            max_new_tokens=scale.max_new_tokens,
            seed=config.seed,
            others=others,
            engines=found.opened,
        )
        _run(config, bench, skipped)


def _run(config: BenchConfig, bench: Bench, skipped: Mapping[str, str]) -> None:
    """Run, and write what there is however it ends."""
    from draftwood.bench.document import Writer
    from draftwood.bench.judge import Judge
    from draftwood.bench.run import Log
    from draftwood.core.machine import load_average

    pair, prompts, log = bench.pair, bench.prompts, Log(cases=list(bench.cases))
    judge = Judge(pair=pair, prompts=prompts, seed=config.seed) if config.scale().judged else None
    writer = Writer(
        config=config,
        pair=pair,
        prompts=prompts,
        log=log,
        load_before=load_average(),
        skipped=skipped,
        others=bench.others,
        judge=judge,
    )
    settings = len({setting.name for setting, _ in bench.cases})
    click.echo(f"{settings} settings, {len(prompts)} prompts, {bench.steps} batches", err=True)
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
