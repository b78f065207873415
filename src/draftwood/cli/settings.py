"""Options as dataclasses, which hold the defaults and the help texts, and the settings of a command that writes texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, final

import click

from draftwood.cli.console import check_standard_output, check_unicode
from draftwood.cli.job.lines import check_files
from draftwood.cli.options import Sections, pick
from draftwood.cli.output_options import GrammarOptions, LogprobOptions, with_grammar
from draftwood.cli.progress import importing, loading_libraries, note
from draftwood.core import fit
from draftwood.core.checks import integer, setting, short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.files import check_readable
from draftwood.core.limits import Limits
from draftwood.core.settings import MAX_SEED, LoadOptions, Method
from draftwood.loading.names import check_models, named_or_bundled
from draftwood.sampling.settings import Sampling

if TYPE_CHECKING:
    from draftwood.api import Pair
    from draftwood.engine.decode import Decoder
    from draftwood.engine.session import Session

S = TypeVar("S", bound="Session")
Kind: TypeAlias = Literal["language", "translation"]


@final
@dataclass(frozen=True, kw_only=True)
class Models:
    """The models: hub names, folders, GGUF files or short names."""

    target: str | None = setting(
        None, "hub name, folder, GGUF file or short name ('draftwood models'); default: the bundled model"
    )
    draft: str | None = setting(None, "small model that drafts, best with the target's tokenizer; none: no model drafts")


@final
@dataclass(frozen=True, kw_only=True)
class Seed:
    """The seed of the random numbers."""

    seed: int | None = setting(None, "the same seed gives the same text; default: drawn and shown")

    def __post_init__(self) -> None:
        if self.seed is not None:
            integer("seed", self.seed, 0, MAX_SEED)


@final
@dataclass(frozen=True, kw_only=True)
class Files:
    """Prompts from a file."""

    input: Path | None = setting(None, "JSON lines with a prompt and optionally a seed and an id; - is standard input")
    output: Path | None = setting(None, "JSON lines with the texts; existing answers are kept and their prompts skipped")
    batch_size: int = setting(8, "prompts of the input file that are answered at a time")

    def __post_init__(self) -> None:
        integer("batch_size", self.batch_size, 1)


@final
@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """What drafts are taken from, apart from the models."""

    draft_text: Path | None = setting(
        None, "a file that the output may repeat, such as the one that is edited: a source of drafts"
    )

    def __post_init__(self) -> None:
        if self.draft_text is not None:
            check_readable(self.draft_text)

    @property
    def text(self) -> str | None:
        """The text of the file; None without one."""
        return None if self.draft_text is None else self.draft_text.read_text(encoding="utf-8", errors="replace")


@final
@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The system prompt, the chat template, what messages may hold, and the display."""

    system: str | None = setting(None, "system prompt; default: that of the chat template, if any")
    special_tokens_in_content: bool = setting(False, "names of special tokens in messages become these tokens, not text")
    chat_template_kwargs: str | None = setting(
        None, 'JSON object of values that the chat template reads: {"enable_thinking": false}'
    )
    quiet: bool = setting(False, "write the answers only, without their speed")
    resume: Path | None = setting(None, "go on with the chat in a file that /save wrote, and keep it there")

    def __post_init__(self) -> None:
        check_unicode("the system prompt", self.system or "")
        _ = self.variables

    @property
    def variables(self) -> dict[str, Any] | None:
        """The values for the chat template; None if none were given."""
        if self.chat_template_kwargs is None:
            return None
        with suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(self.chat_template_kwargs), dict):
                return found
        given = short_repr(self.chat_template_kwargs)
        raise ConfigError(f'chat_template_kwargs is {given}: give a JSON object such as {{"enable_thinking": false}}')


@final
@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """Options of the display."""

    show: bool = setting(False, "mark drafted tokens (cyan, or in ⟦ ⟧) and the target's own (yellow)")
    compare: bool = setting(False, "decode without a draft too, and show the speed-up")
    json: bool = setting(False, "print one JSON object and nothing else")


TEXT_SECTIONS: Sections = {
    "Models": (Models, LoadOptions),
    "Drafting": (Method,),
    "Grammar": (GrammarOptions,),
    "Sampling": (Sampling, Seed),
    "Length": (Limits,),
}
"""The options of all commands that continue texts."""
DRAFTING = (Method, DraftOptions)
SECTIONS: Sections = {**TEXT_SECTIONS, "Drafting": DRAFTING, "Files": (Files,), "Display": (DisplayOptions, LogprobOptions)}


class Opened(NamedTuple, Generic[S]):
    """Loaded models, and how they write."""

    session: S
    decoder: Decoder
    sampling: Sampling
    method: Method


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a command that writes texts, checked as far as possible without the models.

    Attributes:
        kind: ``language`` to continue prompts, ``translation`` to translate sentences.
        given: names of the options that were given.
    """

    kind: Kind = "language"
    models: Models
    loading: LoadOptions
    method: Method
    sampling: Sampling
    limits: Limits
    seed: int | None
    files: Files
    display: DisplayOptions
    logprobs: LogprobOptions = field(default_factory=LogprobOptions)
    drafts: DraftOptions = field(default_factory=DraftOptions)
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        temperature = self.sampling.temperature  # the model's own may be 0
        check_fit(self.models, self.method, *([temperature] if "temperature" in self.given else [temperature, 0.0]))

    @staticmethod
    def of(options: Mapping[str, Any], kind: Kind = "language") -> Settings:
        """The settings from the options that were given, by name. A translation is greedy."""
        options = with_grammar(options)
        drawn = kind == "language"
        return Settings(
            kind=kind,
            models=pick(Models, options),
            loading=pick(LoadOptions, options),
            method=pick(Method, options),
            sampling=pick(Sampling, options) if drawn else Sampling(temperature=0.0),
            limits=pick(Limits, options),
            seed=pick(Seed, options).seed if drawn else 0,
            files=pick(Files, options),
            display=pick(DisplayOptions, options),
            logprobs=pick(LogprobOptions, options),
            drafts=pick(DraftOptions, options),
            given=frozenset(options),
        )

    def open(self) -> Opened[Any]:
        """Load the models and build the decoder. Settings of the sampling that were not given are the target's own."""
        check_models(self.kind, self.models.target, self.models.draft)
        session = load_session(self.kind, self.models, self.loading)
        if self.kind == "translation":  # those of a pair are logged by load
            for remark in session.remarks:
                click.echo(f"Note: {remark}.", err=True)
            session.request((), self.limits_from(session.limits), 0)  # refuses impossible limits
        return self.opened(session)

    def opened(self, session: S) -> Opened[S]:
        """Loaded models with the decoder of these settings."""
        sampling = session.own_sampling(self.given_of(self.sampling))
        method = session.method(self.method, temperature=sampling.temperature, draft_text=self.drafts.draft_text)
        decoder = session.decoder(method, temperature=sampling.temperature)
        list(decoder.stream([], sampling))  # refuses a verifier for another temperature
        return Opened(session, decoder, sampling, method)

    def limits_from(self, own: Limits) -> Limits:
        """The models' own limits, with what was given."""
        return replace(own, **self.given_of(self.limits))

    def given_of(self, part: Sampling | Limits) -> dict[str, Any]:
        """The settings of a part that were given, by name."""
        return {f.name: getattr(part, f.name) for f in fields(part) if f.name in self.given}


def load_session(kind: Kind, models: Models, loading: LoadOptions) -> Any:
    """The pair, or the translator. Warnings of libraries are silenced."""
    with loading_libraries():
        from draftwood import api, translation
        from draftwood.loading.models import quiet_loading

    load: Callable[..., Session] = api.load if kind == "language" else translation.load_translator
    with note(f"Loading {models.target or 'the bundled models'}"), importing():
        quiet_loading()
        return load(models.target, models.draft, options=loading)


def load_fixed(models: Models, loading: LoadOptions) -> Pair:
    """Load a pair to measure it, with one number of threads from now on. Wrong names are refused before PyTorch comes."""
    check_models("language", models.target, models.draft)
    with loading_libraries():
        from draftwood.hardware.threads import set_threads
    set_threads(loading.threads)
    pair: Pair = load_session("language", models, loading)
    return pair


def check_fit(models: Models, method: Method, *temperatures: float) -> None:
    """Refuse a wrong shape or pairing before models are loaded; the method has to fit one of the possible temperatures.

    Block lengths are checked later: only the draft has them. If no temperature fits, the error is that of the last one.
    """
    has_draft = named_or_bundled("language", models.target, models.draft)[1] is not None
    *others, last = temperatures
    for temperature in others:
        with suppress(ConfigError):
            fit.check_fit(method, has_draft=has_draft, temperature=temperature)
            return
    fit.check_fit(method, has_draft=has_draft, temperature=last)


def check_display(display: DisplayOptions, method: Method) -> None:
    """Refuse options of the display that exclude each other or have no effect."""
    if display.show and display.json:
        raise ConfigError("--show and --json exclude each other: JSON has no colours")
    if display.compare and method == Method(method="ar", verifier=method.verifier):
        raise ConfigError("--compare compares a method with plain decoding, but --method ar is plain decoding itself")


def check_input(settings: Settings, text: str | None, *, single: bool) -> None:
    """Refuse options that would have no effect, and files that cannot be read or written, before models are loaded.

    Args:
        text: the argument of the command; None if it was left out.
        single: it is one text, so there is no file.
    """
    files, display, prompts = settings.files, settings.display, settings.kind == "language"
    what, example = (
        ("prompt", 'a text such as "Once upon a time"') if prompts else ("text", 'a sentence such as "Guten Tag."')
    )
    if text is None and files.input is None:
        raise ConfigError(f"there is no {what}: give {example}, - for standard input, or --input FILE")
    if text is not None and files.input is not None:
        raise ConfigError(f"both a {what} ({text!r}) and --input {files.input} were given: leave one of them out")
    for name in ("output", "batch_size"):
        if single and name in settings.given:
            why = "--input FILE, which is missing" if prompts else "--input FILE or -, but a single text was given"
            raise ConfigError(f"--{name.replace('_', '-')} belongs to {why}")
    for name, value in {"show": display.show, "compare": display.compare, "draft-text": settings.drafts.draft_text}.items():
        if not single and value:
            raise ConfigError(f"--{name} is for a single {what}; leave it out with --input{'' if prompts else ' and -'}")
    check_files(files.input, files.output)
    if files.output is None:
        check_standard_output()
    if settings.logprobs.wanted and not (display.json or (prompts and not single)):
        how = "--json, or give --input FILE" if prompts else "--json"
        raise ConfigError(f"--logprobs {settings.logprobs.logprobs} is for JSON, and this output is plain text: add {how}")
    check_display(display, settings.method)
