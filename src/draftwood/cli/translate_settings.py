"""The options of ``draftwood translate`` as dataclasses, which hold the defaults and the help texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import click

from draftwood.cli.logprob_options import LogprobOptions
from draftwood.cli.options import dataclass_options, pick
from draftwood.cli.progress import loading_libraries, note
from draftwood.cli.settings import DisplayOptions, check_fit
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions, Method
from draftwood.core.shapes import MAX_NODES
from draftwood.loading.names import check_models, named_or_bundled, resolve
from draftwood.sampling.settings import Sampling

if TYPE_CHECKING:
    from draftwood.engine.decode import Decoder
    from draftwood.engine.requests import Request
    from draftwood.translation import Translator

F = TypeVar("F", bound=Callable[..., Any])


@final
@dataclass(frozen=True, kw_only=True)
class Models:
    """The models: hub names or folders."""

    target: str | None = field(
        default=None, metadata={"help": "encoder-decoder model that translates; default: the bundled one"}
    )
    draft: str | None = field(
        default=None,
        metadata={"help": "a drafter trained for the target ('train spec-drafter'), or another model with its tokenizer"},
    )


@final
@dataclass(frozen=True, kw_only=True)
class Block:
    """The length of a drafted block."""

    k: int | None = field(default=None, metadata={"help": "tokens drafted in one pass; default: the draft's own number"})

    def __post_init__(self) -> None:
        if self.k is not None and not 1 <= self.k <= MAX_NODES:
            raise ConfigError(f"k is {self.k}: give a number of tokens from 1 to {MAX_NODES}")


@final
@dataclass(frozen=True, kw_only=True)
class Length:
    """The most tokens of a translation."""

    max_new_tokens: int | None = field(
        default=None, metadata={"help": "most tokens of a translation; default: the model's own limit"}
    )


@final
@dataclass(frozen=True, kw_only=True)
class Files:
    """Sentences from a file.

    Raises:
        ConfigError: a batch size below 1.
    """

    input: Path | None = field(default=None, metadata={"help": "text with one sentence per line; - is standard input"})
    output: Path | None = field(
        default=None,
        metadata={"help": "text with the translations, line by line; a stopped run resumes from OUTPUT.partial"},
    )
    batch_size: int = field(default=8, metadata={"help": "sentences that are translated at a time"})

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}: give 1 or more")


SECTIONS: dict[str, tuple[type[Any], ...]] = {
    "Models": (Models, LoadOptions),
    "Drafting": (Method, Block),
    "Length": (Length,),
    "Files": (Files,),
    "Display": (DisplayOptions, LogprobOptions),
}
_LEFT_OUT = ("profile", "weights")  # for language models only


@final
@dataclass(frozen=True, kw_only=True)
class Opened:
    """Loaded models with their decoder and method."""

    translator: Translator
    decoder: Decoder
    method: Method

    def limits(self, settings: Settings) -> Limits:
        """The most tokens of a translation."""
        most = settings.length.max_new_tokens
        return self.translator.limits if most is None else Limits(max_new_tokens=most)

    def request(self, text: str, settings: Settings) -> Request:
        """The request for a sentence; raises what :meth:`Translator.encode` and :meth:`Translator.request` raise."""
        found = self.translator.request(self.translator.encode(text), self.limits(settings), 0)
        return replace(found, logprobs=settings.logprobs.wanted)

    def facts(self, settings: Settings) -> dict[str, Any]:
        """The settings that the translations depend on, as plain values."""
        from draftwood.cli.job.resume import end_facts, model_facts, text_facts

        models = settings.models
        target, draft = named_or_bundled("translation", models.target, models.draft)
        target, draft = resolve(target), None if draft is None else resolve(draft)
        return {
            **model_facts(target, draft, (models.target, models.draft)),
            "dtype": str(self.translator.model.dtype).removeprefix("torch."),
            "engine": self.translator.target.engine,
            **end_facts(self.translator.eos, self.translator.final_token),
            **text_facts(self.method, self.translator.sampling, self.limits(settings)),
            **settings.logprobs.facts,
        }


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of ``draftwood translate``, checked as far as possible without the models.

    Raises:
        ConfigError: options out of range, or in conflict.
        PairingError: a verifier that is not exact for the method.
    """

    models: Models
    loading: LoadOptions
    method: Method
    length: Length
    files: Files
    display: DisplayOptions
    logprobs: LogprobOptions

    def __post_init__(self) -> None:
        check_fit(self.models, self.method, Sampling(temperature=0.0))
        if self.length.max_new_tokens is not None:
            Limits(max_new_tokens=self.length.max_new_tokens)

    @staticmethod
    def of(options: Mapping[str, Any]) -> Settings:
        """The settings from all options by name.

        Raises:
            ConfigError: both ``k`` and a shape.
        """
        method, k = pick(Method, options), pick(Block, options).k
        if k is not None and method.shape is not None:
            raise ConfigError(f"--k {k} and --shape {method.shape} both set the length of a block: leave one of them out")
        return Settings(
            models=pick(Models, options),
            loading=pick(LoadOptions, options),
            method=method if k is None else replace(method, shape=str(k)),
            length=pick(Length, options),
            files=pick(Files, options),
            display=pick(DisplayOptions, options),
            logprobs=pick(LogprobOptions, options),
        )

    def open(self) -> Opened:
        """Load the models and build the decoder. Ignored settings of the target are reported on standard error."""
        check_models("translation", self.models.target, self.models.draft)
        with loading_libraries():
            from draftwood.loading.models import quiet_loading
            from draftwood.translation import load_translator
        with note(f"Loading {self.models.target or 'the bundled models'}"):
            quiet_loading()
            translator = load_translator(self.models.target, self.models.draft, options=self.loading)
        for remark in translator.remarks:
            click.echo(f"Note: {remark}.", err=True)
        opened = Opened(
            translator=translator, decoder=translator.decoder(self.method), method=translator.method(self.method)
        )
        translator.request((), opened.limits(self), 0)  # refuses impossible limits before anything is written
        return opened


def defaults() -> dict[str, Any]:
    """Every option by name, as it is if it is not given."""
    return {f.name: f.default for classes in SECTIONS.values() for cls in classes for f in fields(cls)}


def translate_options(function: F) -> F:
    """All options of ``draftwood translate``."""
    for cls in (cls for section in reversed(SECTIONS.values()) for cls in reversed(section)):
        function = dataclass_options(cls, leave_out=_LEFT_OUT)(function)
    return function
