"""Command-line options made from a frozen dataclass, so that each default is written once.

Each field becomes ``--its-name``. Its type is int, float, str, Path, ``Literal[...]`` (a choice), or one of these with
``| None``. A ``tuple[..., ...]`` of them may be given several times. A bool is a flag, ``--x/--no-x`` where the default is
True. A field without a default is a required option. The option's help is ``metadata["help"]``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, Union, final

import click
from click.core import ParameterSource

from draftwood.core.errors import ConfigError
from draftwood.core.unknown import alias
from draftwood.sampling.settings import NO_PLAIN_OPTION, OF_MODELS, TOP_K, Sampling

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


Changes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Field -> the ``help``, the ``default`` and the shown one (``show_default``) of its option in one command, in place of the
field's own."""
Sections: TypeAlias = Mapping[str, tuple[type[Any], ...]]
"""Title -> the dataclasses whose fields are its options."""


def dataclass_options(
    *classes: type[Any], leave_out: Collection[str] = (), changes: Changes | None = None
) -> Callable[[F], F]:
    """A decorator that adds one click option per field. The function gets those that were given, by field name: the defaults
    are the dataclass's own, except those that ``changes`` gives; None there means: not given.

    Args:
        classes: the dataclasses; of fields with the same name the first one counts.
        leave_out: fields without an option.
        changes: what differs in this command.

    Raises:
        ConfigError: a field of an unsupported type.
    """
    options: dict[str, Any] = {}
    for cls in classes:
        hints, without = typing.get_type_hints(cls), {*leave_out, *options, *(NO_PLAIN_OPTION if cls is Sampling else ())}
        shown = [f for f in dataclasses.fields(cls) if f.init and f.name not in without]
        options |= {f.name: _option(f, hints[f.name], (changes or {}).get(f.name, {})) for f in shown}
        if cls is Sampling and "logit_bias" not in leave_out:
            options["logit_bias"] = _LOGIT_BIAS
    dropped = options.keys() - {name for name, own in (changes or {}).items() if own.get("default") is not None}

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **values: Any) -> Any:
            source = click.get_current_context().get_parameter_source
            unset = {name for name in dropped & values.keys() if source(name) is ParameterSource.DEFAULT}
            return function(*args, **{name: value for name, value in values.items() if name not in unset})

        for option in reversed(options.values()):
            called = option(called)
        return typing.cast(F, called)

    return decorate


def pick(cls: type[T], options: Mapping[str, Any]) -> T:
    """An object of the dataclass, made from the options that are its fields."""
    return cls(**{f.name: options[f.name] for f in dataclasses.fields(cls) if f.name in options})  # type: ignore[arg-type]


def _option(field: dataclasses.Field[Any], hint: Any, changed: Mapping[str, Any]) -> Callable[[F], F]:
    flag = "--" + field.name.replace("_", "-")
    default = changed.get("default", field.default)
    settings: dict[str, Any] = {"help": changed.get("help", field.metadata.get("help", ""))}
    if default is dataclasses.MISSING:
        settings["required"] = True
    else:
        settings |= {"default": default, "show_default": default is not None and default is not False and default != ()}
    settings |= {name: value for name, value in changed.items() if name == "show_default"}
    if hint is bool:
        both = f"{flag}/--no-{flag[2:]}" if default is True else flag
        return click.option(both, field.name, is_flag=True, **settings)
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,):
        hint, settings["multiple"] = typing.get_args(hint)[0], True
    return click.option(flag, field.name, type=_type(field.name, hint), **settings)


def _type(name: str, hint: Any) -> Any:
    if typing.get_origin(hint) in (Union, types.UnionType):
        left = [a for a in typing.get_args(hint) if a is not type(None)]
        hint = str if str in left else left[0] if len(left) == 1 else hint  # values beyond a text only Python gives
    if typing.get_origin(hint) is Literal:
        return click.Choice([str(a) for a in typing.get_args(hint)])
    if hint is Path:
        return click.Path(path_type=Path)
    if hint in (int, float, str):
        return hint
    raise ConfigError(f"field {name!r}: no command-line option can be made from the type {hint!r}")


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


_LOGIT_BIAS: Final = click.option(
    "--logit-bias", multiple=True, metavar="TOKEN=VALUE", callback=_bias, help="add to a token's score; repeatable"
)


def own_defaults(name: str, config: Mapping[str, Any]) -> Changes:
    """Help that says which settings are the model's own unless given, and what they are in a generation config.

    Args:
        name: the model of the config.
        config: its generation config.
    """
    known = {"top_k": TOP_K, **config} if config.get("do_sample") else config
    shown = {field: f" ({known[field]:g} for {name})" if field in known else "" for field in OF_MODELS}
    helps = {f.name: f"{f.metadata.get('help')}; default: the model's own" for f in dataclasses.fields(Sampling)}
    return {field: {"help": helps[field] + value, "show_default": False} for field, value in shown.items()}


@final
class Sectioned(click.Command):
    """A command with the options of some sections, in which its help shows them; ``leave_out`` and ``changes`` are as for
    :func:`dataclass_options`. A text without quotes is refused in a sentence of its own."""

    allow_extra_args = True

    def __init__(
        self, *args: Any, sections: Sections, leave_out: Collection[str] = (), changes: Changes | None = None, **kwargs: Any
    ) -> None:
        options = dataclass_options(*chain.from_iterable(sections.values()), leave_out=leave_out, changes=changes)
        kwargs["callback"] = callback = options(kwargs["callback"])
        kwargs["params"] += reversed(callback.__click_params__)
        super().__init__(*args, **kwargs)
        self.sections = sections

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {str(param.name): param.opts[0] for param in self.params if isinstance(param, click.Option)}
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (meant := alias(error.option_name.lstrip("-").replace("-", "_"), own)) is None:
                raise
            raise click.UsageError(f"No such option {error.option_name!r}. Did you mean {own[meant]!r}?", ctx) from None
        if rest and not ctx.resilient_parsing:
            texts = any(isinstance(param, click.Argument) for param in self.params)
            named = f"; --target {rest[0]} names a model" if "target" in own else ""
            advice = "put quotes around the whole text" if texts else f"this command takes options only{named}"
            raise click.UsageError(f"There is an unexpected {rest[0]!r}: {advice}.", ctx)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left = {str(p.name): p for p in self.get_params(ctx) if isinstance(p, click.Option)}
        titles = {
            title: [f.name for cls in classes for f in dataclasses.fields(cls)] for title, classes in self.sections.items()
        }
        for title, names in (titles | {"Other": list(left)}).items():
            shown = [left.pop(name) for name in names if name in left]
            records = [record for option in shown if (record := option.get_help_record(ctx))]
            with formatter.section(title):
                formatter.write_dl(records)
