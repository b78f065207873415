"""``python -m benchmarks translate``: its options are those of :class:`TranslateConfig`.

Nothing heavy is imported before a benchmark runs.
"""

from __future__ import annotations

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

    With --exact, compare the texts only: every sentence, one at a time and in ragged batches. With --ablation, see what
    the length of a block, beta and tau do.
    """
    from benchmarks.translate.peers import require_packages
    from benchmarks.translate.sentences import chosen_pairs, longest_translation, read_sentences
    from draftwood.hardware.threads import kept_threads
    from draftwood.loading.models import quiet_loading
    from draftwood.translation import load_translator

    config = TranslateConfig(**options)
    require_packages(config)
    quiet_loading()
    with kept_threads(config.threads):
        count = len(chosen_pairs(config))  # a folder that cannot be read is named before the models are loaded
        loading = LoadOptions(dtype="float32", device="cpu", backend=config.backend)
        translator = load_translator(config.target, config.draft, options=loading)
        systems = _systems(config, translator)
        config.output.mkdir(parents=True, exist_ok=True)
        with steps("greedy translations", count) as advance:
            sentences = read_sentences(config, translator, longest_translation(config, translator), advance)
        (_exact if config.exact else _speed)(config, translator, systems, sentences)


def _systems(config: TranslateConfig, translator: Translator) -> list[System]:
    from benchmarks.translate.ours import our_systems
    from benchmarks.translate.peers import peer_systems
    from benchmarks.translate.sentences import longest_translation

    longest = longest_translation(config, translator)
    peers = peer_systems(config, translator.model, translator.tokenizer, translator.eos, longest)
    systems = [*peers, *our_systems(config, translator, longest)]
    return [system for system in systems if system.greedy or not config.exact]


def _speed(config: TranslateConfig, translator: Translator, systems: list[System], sentences: list[Sentence]) -> None:
    """Run, and write the results so far even after an error."""
    from benchmarks.translate.document import Writer
    from benchmarks.translate.run import Bench, Log, batched
    from draftwood.hardware.machine import load_average

    cases = [(system, size) for size in config.batch_size for system in systems]
    long = [n for n, sentence in enumerate(sentences) if len(sentence.greedy) >= config.long]
    short = [n for n, sentence in enumerate(sentences) if len(sentence.greedy) < config.long]
    batches = {size: batched([short, long], size) for size in config.batch_size}
    bench = Bench(
        cases=cases, sources=[s.tokens for s in sentences], batches=batches, repeats=config.times(), seed=config.seed
    )
    log = Log(cases=cases)
    writer = Writer(
        config=config,
        translator=translator,
        sentences=sentences,
        batches=batches,
        groups={"all": sorted([*short, *long]), **({"long": long} if long else {})},
        log=log,
        load_before=load_average(),
    )
    try:
        with steps("translate", bench.steps) as advance:
            bench.run(log, advance, lambda: writer.write(partial=log.repeats < config.times()))
    except KeyboardInterrupt:
        kept = f"{config.output / 'translate.md'} holds {log.repeats}" if log.repeats else "nothing was written"
        click.echo(f"Interrupted after {log.repeats} complete repeats of {config.times()}: {kept}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    click.echo(f"Report: {config.output / 'translate.md'}")


def _exact(config: TranslateConfig, translator: Translator, systems: list[System], sentences: list[Sentence]) -> None:
    from benchmarks.record import save
    from benchmarks.translate import exact
    from benchmarks.translate.report import exact_markdown
    from draftwood.hardware.machine import load_average

    if not systems:
        raise ConfigError("no chosen system means to write the target's greedy translations: name another one")
    with steps("exact", exact.steps(systems, len(sentences))) as advance:
        document = exact.compare(config, translator, systems, sentences, load_average(), advance)
    save(config.output, "translate-exact", document, exact_markdown(document))
    click.echo(exact_markdown(document))
