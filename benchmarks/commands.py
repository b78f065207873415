"""The smaller commands; their options are those of the classes in :mod:`benchmarks.config`.

Nothing heavy is imported before a benchmark runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.config import CostConfig, DivergenceConfig, EditsConfig
from benchmarks.never_slower.config import NeverSlowerConfig
from benchmarks.opening import open_pair, quiet
from benchmarks.start.config import StartConfig
from draftwood.cli.options import dataclass_options
from draftwood.cli.progress import steps

if TYPE_CHECKING:
    from draftwood.api import Pair


@click.command(name="cost")
@dataclass_options(CostConfig)
def cost(**options: Any) -> None:
    """Measure what a forward of the target costs by its tokens and its context, and how fast the memory is read.

    DRAFTWOOD_ISA=avx2 before the command measures what a processor without AVX-512 would do.

    Asked by docs/speed.md.
    """
    from benchmarks.cost import markdown, measure

    config = CostConfig(**options)
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("cost", len(config.context)) as advance:
        opened: list[Pair] = []
        for backend in config.backends():
            variants = [(weights, bits) for weights in ("same", *config.weights) for bits in config.activations]
            for weights, bits in variants if backend == "native" else [("same", 8)]:
                opened.append(open_pair(config, backend, weights=weights, activations=bits))
        document = measure(config, {pair.target.engine: pair for pair in opened}, advance)
    _report(config.output, "cost", document, markdown(document))


@click.command(name="never-slower")
@dataclass_options(NeverSlowerConfig)
def never_slower(**options: Any) -> None:
    """Compare auto with plain decoding, text by text: with the pair's draft, without one, and with a useless one.

    Asked by docs/speed.md.
    """
    from benchmarks.never_slower.run import markdown, run

    config = NeverSlowerConfig(**options)
    config.output.mkdir(parents=True, exist_ok=True)
    document = run(config, steps)
    _report(config.output, "never-slower", document, markdown(document))


@click.command(name="divergence")
@dataclass_options(DivergenceConfig)
def divergence(**options: Any) -> None:
    """Measure what inputs of 8 bits change in the distributions of a file in codes, on held-out texts.

    Asked by docs/models.md.
    """
    from benchmarks.divergence import markdown, measure
    from benchmarks.prompts import pieces_of_length

    config = DivergenceConfig(**options)
    fewer, more = (open_pair(config, "native", activations=bits) for bits in (8, 16))
    texts = pieces_of_length(config.data, config.pieces, config.tokens, fewer.encode)
    with steps("divergence", len(texts)) as advance:
        document = measure(config, fewer, more, texts, advance)
    _report(config.output, "divergence", document, markdown(document))


@click.command(name="start")
@dataclass_options(StartConfig)
def start(**options: Any) -> None:
    """Measure starting: seconds to the first token and memory, of transformers and of both backends, a process each.

    Asked by docs/speed.md.
    """
    from benchmarks.start.run import markdown, measure

    config = StartConfig(**options)
    quiet()
    config.output.mkdir(parents=True, exist_ok=True)
    with steps("start", config.repeats * len(config.system_names())) as advance:
        document = measure(config, advance)
    _report(config.output, "start", document, markdown(document))


@click.command(name="edits")
@dataclass_options(EditsConfig)
def edits(**options: Any) -> None:
    """Measure how fast files are written again with a renamed symbol, with the old file in the prompt and given too.

    Asked by docs/speed.md.
    """
    from benchmarks.edits import markdown, measure

    config = EditsConfig(**options)
    with steps("edits", 5 * config.files) as advance:
        document = measure(config, open_pair(config, "native"), advance)
    _report(config.output, "edits", document, markdown(document))


def _report(folder: Path, name: str, document: dict[str, Any], report: str) -> None:
    from benchmarks.record import save

    save(folder, name, document, report)
    click.echo(report)


@click.command(name="schemas")
def schemas() -> None:
    """Hold grammars against JSON Schema's official test suite, and print the report.

    Asked by docs/sampling.md.
    """
    from benchmarks.schemas import markdown, suite

    click.echo(markdown(suite()))
