"""Command-line options made from a frozen dataclass, so that each default is written once.

Each field becomes ``--its-name``. Its type is int, float, str, Path, ``Literal[...]`` (a choice), or one of these with
``| None``. A ``tuple[..., ...]`` of them may be given several times. A bool is a flag, ``--x/--no-x`` where the default is
True. A field without a default is a required option. The option's help is ``metadata["help"]``.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import click

from draftwood.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def dataclass_options(cls: type[Any], *, leave_out: Collection[str] = ()) -> Callable[[F], F]:
    """A decorator that adds one click option per field of ``cls`` and passes its values by field name.

    Args:
        cls: the dataclass.
        leave_out: fields without an option.

    Raises:
        ConfigError: a field of an unsupported type.
    """
    hints = typing.get_type_hints(cls)
    options = [_option(f, hints[f.name]) for f in dataclasses.fields(cls) if f.init and f.name not in leave_out]

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def pick(cls: type[T], options: Mapping[str, Any]) -> T:
    """An object of the dataclass, made from the options that are its fields."""
    return cls(**{f.name: options[f.name] for f in dataclasses.fields(cls) if f.name in options})  # type: ignore[arg-type]


def _option(field: dataclasses.Field[Any], hint: Any) -> Callable[[F], F]:
    flag = "--" + field.name.replace("_", "-")
    hint = _without_none(hint)
    settings: dict[str, Any] = {"help": field.metadata.get("help", "")}
    if field.default is dataclasses.MISSING:
        settings["required"] = True
    else:
        shown = field.default is not None and field.default is not False and field.default != ()
        settings |= {"default": field.default, "show_default": shown}
    if hint is bool:
        both = f"{flag}/--no-{flag[2:]}" if field.default is True else flag
        return click.option(both, field.name, is_flag=True, **settings)
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,):
        hint, settings["multiple"] = typing.get_args(hint)[0], True
    return click.option(flag, field.name, type=_type(field.name, hint), **settings)


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (Union, types.UnionType):
        left = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(left) == 1:
            return left[0]
    return hint


def _type(name: str, hint: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        return click.Choice([str(a) for a in typing.get_args(hint)])
    if hint is Path:
        return click.Path(path_type=Path)
    if hint in (int, float, str):
        return hint
    raise ConfigError(f"field {name!r}: no command-line option can be made from the type {hint!r}")
