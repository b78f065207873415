"""The options of ``draftwood generate`` as dataclasses, which hold the defaults and the help texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

import click

from draftwood.cli.grammar_options import GrammarOptions
from draftwood.cli.logprob_options import LogprobOptions
from draftwood.cli.options import dataclass_options, pick
from draftwood.cli.progress import loading_libraries, note
from draftwood.core import fit
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import MAX_SEED, LoadOptions, Method
from draftwood.loading.names import bundled_drafter, check_models
from draftwood.sampling.settings import NO_PLAIN_OPTION, Sampling

if TYPE_CHECKING:
    from draftwood.api import Pair
    from draftwood.engine.decode import Decoder

F = TypeVar("F", bound=Callable[..., Any])


class AnyModels(Protocol):
    """The models of any command."""

    @property
    def target(self) -> str | None: ...

    @property
    def draft(self) -> str | None: ...


@final
@dataclass(frozen=True, kw_only=True)
class Models:
    """The models: hub names, folders, GGUF files or short names."""

    target: str | None = field(
        default=None,
        metadata={"help": "hub name, folder, GGUF file or short name ('draftwood models'); default: the bundled model"},
    )
    draft: str | None = field(default=None, metadata={"help": "small model that drafts, with the target's tokenizer"})


@final
@dataclass(frozen=True, kw_only=True)
class Seed:
    """The seed of the random numbers.

    Raises:
        ConfigError: a seed out of range.
    """

    seed: int | None = field(default=None, metadata={"help": "the same seed gives the same text; default: drawn and shown"})

    def __post_init__(self) -> None:
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed is {self.seed}: give an integer from 0 to {MAX_SEED}")


@final
@dataclass(frozen=True, kw_only=True)
class Files:
    """Prompts from a file.

    Raises:
        ConfigError: a batch size below 1.
    """

    input: Path | None = field(
        default=None, metadata={"help": "JSON lines with a prompt and optionally a seed and an id; - is standard input"}
    )
    output: Path | None = field(
        default=None, metadata={"help": "JSON lines with the texts; existing answers are kept and their prompts skipped"}
    )
    batch_size: int = field(default=8, metadata={"help": "prompts of the input file that are answered at a time"})

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}: give 1 or more")


@final
@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """Options of the display."""

    show: bool = field(
        default=False, metadata={"help": "mark drafted tokens (cyan, or in ⟦ ⟧) and the target's own (yellow)"}
    )
    compare: bool = field(default=False, metadata={"help": "decode without a draft too, and show the speed-up"})
    json: bool = field(default=False, metadata={"help": "print one JSON object and nothing else"})


SECTIONS: dict[str, tuple[type[Any], ...]] = {
    "Models": (Models, LoadOptions),
    "Drafting": (Method,),
    "Grammar": (GrammarOptions,),
    "Sampling": (Sampling, Seed),
    "Length": (Limits,),
    "Files": (Files,),
    "Display": (DisplayOptions, LogprobOptions),
}


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a command that writes one text after the other, checked as far as possible without the models.

    Raises:
        ConfigError: options out of range, or in conflict.
        PairingError: a verifier that is not exact for the method.
    """

    models: AnyModels
    loading: LoadOptions
    method: Method
    sampling: Sampling
    limits: Limits
    seed: int | None
    files: Files
    display: DisplayOptions
    logprobs: LogprobOptions = field(default_factory=LogprobOptions)
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        sampling = replace(self.sampling, logit_bias=None)
        possible = [sampling] if "temperature" in self.given else [sampling, replace(sampling, temperature=0.0)]
        check_fit(self.models, self.method, *possible)

    @staticmethod
    def of(options: Mapping[str, Any], given: frozenset[str]) -> Settings:
        """The settings from all options by name, and the names of the given ones."""
        return Settings(
            models=pick(Models, options),
            loading=pick(LoadOptions, options),
            method=pick(Method, options),
            sampling=pick(Sampling, options),
            limits=pick(Limits, options),
            seed=pick(Seed, options).seed,
            files=pick(Files, options),
            display=pick(DisplayOptions, options),
            logprobs=pick(LogprobOptions, options),
            given=given,
        )

    def open(self) -> tuple[Pair, Decoder, Sampling]:
        """Load the models and build the decoder. Sampling settings that were not given are the target's own."""
        check_models("language", self.models.target, self.models.draft)
        with loading_libraries():
            from draftwood.api import load
            from draftwood.loading.models import quiet_loading
        with note(f"Loading {self.models.target or 'the bundled models'}"):
            quiet_loading()
            pair = load(self.models.target, self.models.draft, options=self.loading)
        sampling = pair.own_sampling(
            {f.name: getattr(self.sampling, f.name) for f in fields(Sampling) if f.name in self.given}
        )
        decoder = pair.decoder(self.method, temperature=sampling.temperature)
        list(decoder.stream([], sampling))  # refuses a verifier for another temperature
        return pair, decoder, sampling


def check_fit(models: AnyModels, method: Method, *samplings: Sampling) -> None:
    """Refuse a wrong shape or pairing before models are loaded. Block lengths are checked later: only the draft has them.

    Args:
        samplings: the possible samplings; the method has to fit one of them.

    Raises:
        ConfigError: options in conflict; if no sampling fits, the error of the last one.
        PairingError: a verifier that is not exact for the method.
    """
    has_draft = models.draft is not None or models.target is None or bundled_drafter(models.target) is not None
    refused: ConfigError | None = None
    for sampling in samplings:
        try:
            fit.check_fit(method, has_draft=has_draft, temperature=sampling.temperature)
            return
        except ConfigError as error:
            refused = error
    if refused is not None:
        raise refused


def check_display(display: DisplayOptions, method: Method) -> None:
    """Refuse options of the display that exclude each other or have no effect.

    Raises:
        ConfigError: names the options.
    """
    if display.show and display.json:
        raise ConfigError("--show and --json exclude each other: JSON has no colours")
    if display.compare and method == Method(method="ar", verifier=method.verifier):
        raise ConfigError("--compare compares a method with plain decoding, but --method ar is plain decoding itself")


def section_options(sections: Mapping[str, tuple[type[Any], ...]]) -> Callable[[F], F]:
    """A decorator that adds all options of these sections and ``--logit-bias``.

    Args:
        sections: title -> the dataclasses whose fields are its options; of fields with the same name the first one counts.
    """
    classes = [cls for section in sections.values() for cls in section]

    def decorate(function: F) -> F:
        bias = click.option(
            "--logit-bias",
            multiple=True,
            metavar="TOKEN=VALUE",
            callback=_bias,
            help="add to a token's score; repeatable",
        )
        function = bias(function)
        for i, cls in reversed(list(enumerate(classes))):
            before = {f.name for other in classes[:i] for f in fields(other)}
            function = dataclass_options(cls, leave_out=before.union(NO_PLAIN_OPTION if cls is Sampling else ()))(function)
        return function

    return decorate


def _bias(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[int, float] | None:
    bias = {}
    for text in values:
        token, _, value = text.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not TOKEN=VALUE, such as 42=-5 to add -5 to token 42") from None
        if math.isnan(bias[int(token)]) or bias[int(token)] == math.inf:
            raise click.BadParameter(f"{text!r}: give a finite value, or -inf to forbid the token")
    return bias or None


@final
class Sectioned(click.Command):
    """A command whose help shows its options in sections.

    Args:
        sections: title -> the dataclasses whose fields are its options.
    """

    def __init__(self, *args: Any, sections: Mapping[str, tuple[type[Any], ...]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left = {str(p.name): p for p in self.get_params(ctx) if isinstance(p, click.Option)}
        titles = {title: [f.name for cls in classes for f in fields(cls)] for title, classes in self.sections.items()}
        for title, names in (titles | {"Other": list(left)}).items():
            shown = [left.pop(name) for name in names if name in left]
            records = [record for option in shown if (record := option.get_help_record(ctx))]
            with formatter.section(title):
                formatter.write_dl(records)
