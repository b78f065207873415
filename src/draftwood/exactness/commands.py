"""``draftwood check``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, final

import click

from draftwood.errors import ConfigError
from draftwood.loading import LoadOptions, quiet_loading
from draftwood.methods import Method
from draftwood.options import dataclass_options
from draftwood.sampling import Sampling

if TYPE_CHECKING:
    from draftwood.exactness.report import Report

PROMPTS = ("Once upon a time", "One day, a boy and his dog", "The old king said", "Question: How many apples are left?")
_BY_HAND = ("logit_bias", "processors")


@final
@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """What is checked, and how much of it."""

    target: str | None = field(default=None, metadata={"help": "model whose law is wanted; the bundled one without it"})
    draft: str | None = field(default=None, metadata={"help": "small model that drafts; it has the target's tokenizer"})
    prompt: tuple[str, ...] = field(default=(), metadata={"help": "beginning of a text; several times; some without it"})
    samples: int = field(default=128, metadata={"help": "texts"})
    new_tokens: int = field(default=32, metadata={"help": "new tokens in each"})
    seed: int = field(default=0, metadata={"help": "of the first text; the others count up"})
    json: bool = field(default=False, metadata={"help": "print one JSON object and nothing else"})

    def __post_init__(self) -> None:
        for name in ("samples", "new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")


@click.command(name="check")
@dataclass_options(CheckConfig)
@dataclass_options(LoadOptions)
@dataclass_options(Method)
@dataclass_options(Sampling, leave_out=_BY_HAND)
def command(**options: Any) -> None:
    """Is the output exact? Judge texts of a pair and a method by the target alone."""

    def part(cls: type[Any]) -> Any:
        return cls(**{f.name: options[f.name] for f in fields(cls) if f.name in options})

    config = part(CheckConfig)
    report, name = _check(config, part(LoadOptions), part(Method), part(Sampling))
    click.echo(json.dumps(report.to_json() | {"method": name}) if config.json else _told(report, name))
    if not report.exact:
        raise click.exceptions.Exit(1)


def _check(config: CheckConfig, options: LoadOptions, method: Method, sampling: Sampling) -> tuple[Report, str]:
    from draftwood.api import load
    from draftwood.exactness.report import check

    quiet_loading()
    pair = load(config.target, config.draft, options=options)
    decoder = pair.decoder(method, temperature=sampling.temperature)
    report = check(
        pair,
        decoder,
        sampling,
        config.prompt or PROMPTS,
        samples=config.samples,
        new_tokens=config.new_tokens,
        seed=config.seed,
    )
    return report, f"{decoder.drafter.name} + {decoder.verifier.name}"


def _told(report: Report, name: str) -> str:
    verdict = "exact" if report.exact else "NOT exact"
    if report.gap is not None:
        return (
            f"{name}: {verdict}. {report.tokens} tokens at temperature 0, {report.differing} below the target's best "
            f"score, by {report.gap:.2g} at most ({report.allowed:.2g} is allowed for rounding)"
        )
    return (
        f"{name}: {verdict}. {report.tokens} tokens in the target's own law: total variation {report.total_variation:.4f}, "
        f"by chance {report.expected:.4f}; {report.detectable:.4f} is found nine times in ten; p = {report.p_value:.3g}"
    )
