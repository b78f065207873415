"""``draftwood check``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, final

import click

from draftwood.core.errors import ConfigError
from draftwood.core.options import dataclass_options
from draftwood.core.settings import LoadOptions, Method, Sampling

if TYPE_CHECKING:
    from draftwood.exactness.enumeration import Enumerated
    from draftwood.exactness.goodness import Report

PROMPTS = ("Once upon a time", "One day, a boy and his dog", "The old king said", "Question: How many apples are left?")
_BY_HAND = ("logit_bias", "processors", "warpers")


@final
@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """What is checked, and how much of it."""

    target: str | None = field(
        default=None, metadata={"help": "model whose distribution is wanted; the bundled one without it"}
    )
    draft: str | None = field(default=None, metadata={"help": "small model that drafts; it has the target's tokenizer"})
    prompt: tuple[str, ...] = field(default=(), metadata={"help": "beginning of a text; several times; some without it"})
    samples: int = field(default=128, metadata={"help": "texts"})
    new_tokens: int = field(default=32, metadata={"help": "new tokens in each"})
    enumerate: int | None = field(
        default=None, metadata={"help": "no samples: the exact distribution of so many first tokens, where few are possible"}
    )
    seed: int = field(default=0, metadata={"help": "of the first text; the others count up"})
    json: bool = field(default=False, metadata={"help": "print one JSON object and nothing else"})

    def __post_init__(self) -> None:
        for name in ("samples", "new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.enumerate is None:
            return
        if self.enumerate < 1:
            raise ConfigError(f"enumerate is {self.enumerate}: give 1 or more, or leave it out")
        if given := [name for name in ("samples", "new_tokens") if getattr(self, name) != getattr(type(self), name)]:
            raise ConfigError(f"enumerate draws no samples, but {' and '.join(given)} came too: leave one of them out")


@click.command(name="check")
@dataclass_options(CheckConfig)
@dataclass_options(LoadOptions)
@dataclass_options(Method)
@dataclass_options(Sampling, leave_out=_BY_HAND)
def command(**options: Any) -> None:
    """Is the output exact? Judge texts of a pair and a method by the target alone.

    With --enumerate 2 no text is drawn: every random choice up to the second token is tried, and the distribution that comes
    out is compared with the target's. That takes a tiny vocabulary, or few possible tokens: --top-k 4.
    """

    def part(cls: type[Any]) -> Any:
        return cls(**{f.name: options[f.name] for f in fields(cls) if f.name in options})

    config = part(CheckConfig)
    report, facts = _check(config, part(LoadOptions), part(Method), part(Sampling))
    told = "{method} by {engine}: ".format(**facts) + report.told()
    click.echo(json.dumps(report.to_json() | facts) if config.json else told)
    if not report.exact:
        raise click.exceptions.Exit(1)


def _check(
    config: CheckConfig, options: LoadOptions, method: Method, sampling: Sampling
) -> tuple[Report | Enumerated, dict[str, Any]]:
    """The report, and of what."""
    from draftwood.api import load
    from draftwood.core.machine import set_threads
    from draftwood.exactness.enumeration import enumerated
    from draftwood.exactness.report import check
    from draftwood.loading.models import quiet_loading

    if options.weights != "same":
        raise ConfigError(
            f"texts are judged by the model as it came, which is not the target of --weights {options.weights}: leave it out"
        )
    quiet_loading()
    set_threads(options.threads)
    pair = load(config.target, config.draft, options=options)
    decoder = pair.decoder(method, temperature=sampling.temperature)
    prompts, name = config.prompt or PROMPTS, f"{decoder.drafter.name} + {decoder.verifier.name}"
    facts = {"method": name, "engine": pair.target.engine, "fallback": pair.fallback}
    if config.enumerate is not None:
        return enumerated(pair, decoder, sampling, prompts, tokens=config.enumerate, seed=config.seed), facts
    report = check(pair, decoder, sampling, prompts, samples=config.samples, new_tokens=config.new_tokens, seed=config.seed)
    return report, facts
