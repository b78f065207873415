"""The options of ``draftwood generate`` as dataclasses: defaults and help stand here or in the package, and only once."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

import click

from draftwood.cli.progress import note
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.options import dataclass_options, pick
from draftwood.core.settings import MAX_NODES, MAX_SEED, LoadOptions, Method, Sampling

if TYPE_CHECKING:
    from draftwood.api import Pair
    from draftwood.engine.decode import Decoder

F = TypeVar("F", bound=Callable[..., Any])


class AnyModels(Protocol):
    """Which models, of any command."""

    @property
    def target(self) -> str | None: ...

    @property
    def draft(self) -> str | None: ...


@final
@dataclass(frozen=True, kw_only=True)
class Models:
    """Which models: hub names or folders."""

    target: str | None = field(default=None, metadata={"help": "model whose text is wanted; the bundled one without it"})
    draft: str | None = field(default=None, metadata={"help": "small model that drafts; it has the target's tokenizer"})


@final
@dataclass(frozen=True, kw_only=True)
class Seed:
    """Where the random numbers start.

    Raises:
        ConfigError: a seed out of range.
    """

    seed: int | None = field(default=None, metadata={"help": "same seed, same text; drawn and shown without it"})

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
        default=None, metadata={"help": "JSON lines with a prompt each, and a seed and an id if wanted; - is standard input"}
    )
    output: Path | None = field(
        default=None, metadata={"help": "JSON lines with the texts; lines answered there already are kept and skipped"}
    )
    batch_size: int = field(default=8, metadata={"help": "prompts of the input file that are continued together"})

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}: give 1 or more")


@final
@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """What is shown."""

    show: bool = field(
        default=False, metadata={"help": "tell drafted tokens (cyan, or in ⟦ ⟧) from the target's own (yellow)"}
    )
    compare: bool = field(default=False, metadata={"help": "decode without a draft too, and show the speed-up"})
    json: bool = field(default=False, metadata={"help": "print one JSON object and nothing else"})


SECTIONS: dict[str, tuple[type[Any], ...]] = {
    "Models": (Models, LoadOptions),
    "Drafting": (Method,),
    "Sampling": (Sampling, Seed),
    "Length": (Limits,),
    "Files": (Files,),
    "Display": (DisplayOptions,),
}
NO_OPTIONS = ("processors", "warpers")  # settings of a Sampling that only the library takes
_BY_HAND = ("logit_bias", *NO_OPTIONS)


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that ``draftwood generate`` was told, checked as far as possible without the models.

    Raises:
        ConfigError: options out of range, or that do not fit together.
        PairingError: a verifier that is not exact for the method.
    """

    models: Models
    loading: LoadOptions
    method: Method
    sampling: Sampling
    limits: Limits
    seed: int | None
    files: Files
    display: DisplayOptions
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        sampling = replace(self.sampling, logit_bias=None)
        possible = [sampling] if "temperature" in self.given else [sampling, replace(sampling, temperature=0.0)]
        check_fit(self.models, self.method, *possible)

    @staticmethod
    def of(options: Mapping[str, Any], given: frozenset[str]) -> Settings:
        """From the options by name, and the names of those that were given."""

        return Settings(
            models=pick(Models, options),
            loading=pick(LoadOptions, options),
            method=pick(Method, options),
            sampling=pick(Sampling, options),
            limits=pick(Limits, options),
            seed=pick(Seed, options).seed,
            files=pick(Files, options),
            display=pick(DisplayOptions, options),
            given=given,
        )

    @property
    def drawn_seed(self) -> int:
        """The seed, or a new one, short enough to be typed again."""
        return secrets.randbits(32) if self.seed is None else self.seed

    def open(self) -> tuple[Pair, Decoder, Sampling]:
        """Load the models and build the decoder; what was not given of the sampling is the target's own setting.

        A terminal shows a passing note, nothing else is said.
        """
        from draftwood.api import load
        from draftwood.core.machine import set_threads
        from draftwood.loading.models import quiet_loading

        with note(f"Loading {self.models.target or 'the bundled models'}"):
            quiet_loading()
            set_threads(self.loading.threads)
            pair = load(self.models.target, self.models.draft, options=self.loading)
        sampling = pair.own_sampling(
            {f.name: getattr(self.sampling, f.name) for f in fields(Sampling) if f.name in self.given}
        )
        decoder = pair.decoder(self.method, temperature=sampling.temperature)
        list(decoder.stream([], sampling))  # refuses a verifier that is for another temperature
        return pair, decoder, sampling


def check_fit(models: AnyModels, method: Method, *samplings: Sampling) -> None:
    """Refuse a wrong shape or pairing before models are loaded. How long its blocks are, only the draft knows.

    Args:
        samplings: what the sampling may turn out to be; the method has to fit one of them.

    Raises:
        ConfigError: options that do not fit together; where nothing fits, what the last sampling refuses.
        PairingError: a verifier that is not exact for the method.
    """
    with note("Loading PyTorch"):
        from draftwood.engine.decode import Decoder
        from draftwood.engine.methods import NEEDS_BLOCK, build
        from draftwood.runners.table import toy
    has_draft = models.draft is not None or models.target is None
    draft = toy(MAX_NODES if method.method in NEEDS_BLOCK else 0) if has_draft else None
    refused: ConfigError | None = None
    for sampling in samplings:
        try:
            list(Decoder(toy(), *build(method, draft, greedy=sampling.greedy)).stream([], sampling))
            return
        except ConfigError as error:
            refused = error
    if refused is not None:
        raise refused


def check_display(display: DisplayOptions, method: Method) -> None:
    """Refuse what cannot be shown.

    Raises:
        ConfigError: options of the display that exclude each other, or have no effect.
    """
    if display.show and display.json:
        raise ConfigError("--show and --json exclude each other: colours have no place in JSON")
    if display.compare and method == Method(method="ar", verifier=method.verifier):
        raise ConfigError("--compare sets a method beside plain decoding, but --method ar is plain decoding itself")


def generate_options(function: F) -> F:
    """All options of ``draftwood generate``."""
    bias = click.option(
        "--logit-bias", multiple=True, metavar="TOKEN=VALUE", callback=_bias, help="add to this token's score; several times"
    )
    function = bias(function)
    for cls in (cls for section in reversed(SECTIONS.values()) for cls in reversed(section)):
        function = dataclass_options(cls, leave_out=_BY_HAND)(function)
    return function


def _bias(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[int, float] | None:
    bias = {}
    for text in values:
        token, _, value = text.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not TOKEN=VALUE, a token's number and what to add: 42=-5") from None
        if math.isnan(bias[int(token)]) or bias[int(token)] == math.inf:
            raise click.BadParameter(f"{text!r}: give a finite value, or -inf to forbid the token")
    return bias or None


@final
class Sectioned(click.Command):
    """A command whose help shows its options by subject.

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
