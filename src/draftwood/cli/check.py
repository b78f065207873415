"""``draftwood check``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, final

import click

from draftwood.cli.console import write_line
from draftwood.cli.options import Changes, dataclass_options, pick
from draftwood.cli.progress import shares
from draftwood.cli.settings import Models, check_fit, load_fixed
from draftwood.core.checks import integer, setting
from draftwood.core.errors import ConfigError
from draftwood.core.settings import MAX_SEED, LoadOptions, Method
from draftwood.sampling.settings import Sampling

if TYPE_CHECKING:
    from draftwood.exactness.enumeration import Enumerated
    from draftwood.exactness.goodness import Report

PROMPTS = ("Once upon a time", "One day, a boy and his dog", "The old king said", "Question: How many apples are left?")
_CHANGES: Changes = {"target": {"help": "model whose distribution is tested; default: the bundled one"}}


@final
@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """Settings of a check: prompts and number of samples."""

    prompt: tuple[str, ...] = setting((), "beginning of a text, repeatable; default: built-in ones")
    samples: int = setting(128, "number of texts")
    new_tokens: int = setting(32, "new tokens in each text")
    enumerate: int | None = setting(None, "draw no samples: enumerate the exact distribution of this many first tokens")
    seed: int = setting(0, "seed of the first text; later texts count up from it")
    json: bool = setting(False, "print one JSON object and nothing else")

    def __post_init__(self) -> None:
        for name in ("samples", "new_tokens"):
            integer(name, getattr(self, name), 1)
        integer("seed", self.seed, 0, MAX_SEED)
        if self.enumerate is None:
            return
        if self.enumerate < 1:
            raise ConfigError(f"enumerate is {self.enumerate}: give 1 or more, or leave it out")
        if given := [name for name in ("samples", "new_tokens") if getattr(self, name) != getattr(type(self), name)]:
            raise ConfigError(f"enumerate draws no samples, but {' and '.join(given)} also came: leave one of them out")


@click.command(name="check")
@dataclass_options(Models, CheckConfig, LoadOptions, Method, Sampling, leave_out=("logit_bias",), changes=_CHANGES)
def command(**options: Any) -> None:
    """Test whether the output of a pair and a method follows the target's distribution.

    The target alone scores the texts. With --enumerate 2 no text is drawn: every random choice up to the second token is
    tried, and the resulting distribution is compared with the target's. This needs a tiny vocabulary, or few possible
    tokens: --top-k 4. Activations have 16 bits here, as those of the model that scores the texts.
    """
    config = pick(CheckConfig, options)
    models, loading = pick(Models, options), pick(LoadOptions, options)
    report, facts = _check(config, models, loading, pick(Method, options), pick(Sampling, options))
    text = f"{facts['method']} by {facts['engine']}: {report.summary()}"
    write_line(json.dumps(asdict(report) | facts) if config.json else text)
    if not report.exact:
        raise click.exceptions.Exit(1)


def _check(
    config: CheckConfig, models: Models, options: LoadOptions, method: Method, sampling: Sampling
) -> tuple[Report | Enumerated, dict[str, Any]]:
    """The report, and the method, engine and fallback of the tested pair."""
    if options.weights != "same":
        raise ConfigError(
            f"check compares texts with the model's original weights, but --weights is {options.weights}: leave it out"
        )
    check_fit(models, method, sampling.temperature)
    pair = load_fixed(models, replace(options, activations=16))  # as the model that scores the texts

    from draftwood.exactness.enumeration import enumerated
    from draftwood.exactness.report import check, decoder_of

    decoder = decoder_of(pair, method, sampling.temperature)
    prompts, name = config.prompt or PROMPTS, f"{decoder.pipeline.drafter.name} + {decoder.pipeline.verifier.name}"
    facts = {"method": name, "engine": pair.target.engine, "fallback": pair.engine.fallback}
    with shares("check") as on_progress:
        given: Any = (pair, decoder, sampling, prompts)
        more: dict[str, Any] = {"seed": config.seed, "on_progress": on_progress}
        if config.enumerate is not None:
            return enumerated(*given, tokens=config.enumerate, **more), facts
        return check(*given, samples=config.samples, new_tokens=config.new_tokens, **more), facts
