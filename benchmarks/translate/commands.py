"""``python -m benchmarks translate``: its options are those of :class:`TranslateConfig`.

Nothing heavy is imported before a benchmark runs.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import click

from benchmarks.opening import INTERRUPTED
from benchmarks.translate.config import TranslateConfig
from draftwood.cli.options import dataclass_options
from draftwood.cli.progress import steps
from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions

if TYPE_CHECKING:
    from benchmarks.translate.sentences import Sentence
    from benchmarks.translate.systems import System
    from draftwood.translation import Translator


@click.command(name="translate")
@dataclass_options(TranslateConfig)
def command(**options: Any) -> None:
    """Measure translation: Draftwood, transformers and CTranslate2 side by side on the same weights, float32 on the CPU.

    With --exact, compare the texts only: every sentence, one at a time and in ragged batches.

    Asked by docs/speed.md.
    """
    from benchmarks.threads import kept_threads
    from benchmarks.translate.peers import require_packages
    from benchmarks.translate.sentences import chosen_pairs, longest_translation, read_sentences
    from draftwood.loading.models import quiet_loading
    from draftwood.translation import load_translator

    config = TranslateConfig(**options)
    require_packages(config)
    quiet_loading()
    with kept_threads():
        count = len(chosen_pairs(config))  # a folder that cannot be read is named before the models are loaded
        loading = LoadOptions(dtype="float32", device="cpu", backend="torch")
        translator = load_translator(config.target, config.draft, options=loading)
        systems = _systems(config, translator)
        config.output.mkdir(parents=True, exist_ok=True)
        with steps("greedy translations", count) as advance:
            sentences = read_sentences(config, translator, longest_translation(config, translator), advance)
        _measure(config, translator, systems, sentences)


def _systems(config: TranslateConfig, translator: Translator) -> list[System]:
    from benchmarks.translate.ours import our_systems
    from benchmarks.translate.peers import peer_systems
    from benchmarks.translate.sentences import longest_translation

    longest = longest_translation(config, translator)
    peers = peer_systems(config, translator.model, translator.tokenizer, translator.eos, longest)
    systems = [*peers, *our_systems(config, translator, longest)]
    kept = [system for system in systems if system.greedy or not config.exact]
    if not kept:
        raise ConfigError("no chosen system means to write the target's greedy translations: name another one")
    return kept


def _measure(config: TranslateConfig, translator: Translator, systems: list[System], sentences: list[Sentence]) -> None:
    """Run, and write the results so far even after an error."""
    from benchmarks.translate.document import Writer
    from benchmarks.translate.run import Bench, Log, batched
    from draftwood.hardware.machine import load_average

    order = list(range(len(sentences)))
    if config.exact:
        random.Random(config.seed).shuffle(order)  # files are often sorted by length
    batches = {size: batched(order, size) for size in config.sizes()}
    log = Log(cases=[(system, size) for size in config.sizes() for system in systems])
    sources = [sentence.tokens for sentence in sentences]
    bench = Bench(cases=log.cases, sources=sources, batches=batches, repeats=config.times(), seed=config.seed)
    writer = Writer(
        config=config,
        translator=translator,
        sentences=sentences,
        batches=batches,
        log=log,
        load_before=load_average(),
    )
    report = config.output / f"{config.name}.md"
    try:
        with steps(config.name, bench.steps) as advance:
            bench.run(log, advance, lambda: writer.write(partial=log.repeats < config.times()))
    except KeyboardInterrupt:
        kept = f"{report} holds {log.repeats}" if log.repeats else "nothing was written"
        click.echo(f"Interrupted after {log.repeats} complete repeats of {config.times()}: {kept}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    click.echo(report.read_text(encoding="utf-8") if config.exact else f"Report: {report}")
