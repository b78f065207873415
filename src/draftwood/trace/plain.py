"""Records as plain values of JSON and back, checked field by field."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any, Final, Literal, TypeVar, Union

from draftwood.core.checks import is_unicode, short_repr
from draftwood.core.errors import ConfigError

T = TypeVar("T")
_WORDS: Final = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}
_KNOWN: Final[dict[Any, dict[str, Any]]] = {}


def plain(value: Any) -> Any:
    """A record as dictionaries, lists, texts and numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _hints(type(value))}
    if isinstance(value, list):
        return value if not value or isinstance(value[0], int | float | str) else [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return value


def _hints(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass and their types."""
    if cls not in _KNOWN:
        hints = typing.get_type_hints(cls)
        _KNOWN[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    return _KNOWN[cls]


def record(cls: type[T], value: Any, where: str) -> T:
    """A record from plain values.

    Args:
        where: the place of the value, for errors.

    Raises:
        ConfigError: a missing or unknown field, or a value of another type; names its place.
    """
    found: T = _value(cls, value, where)
    return found


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value, where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        [other] = [arg for arg in args if arg is not type(None)]
        return None if value is None else _value(other, value, where)
    if origin is Literal:
        if value not in args:
            raise _wrong(where, value, "one of " + ", ".join(map(str, args)))
        return value
    if origin is list:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        return [_value(args[0], one, f"{where}[{i}]") for i, one in enumerate(value)]
    if origin is dict:
        return _mapping(args, value, where)
    if not _is(hint, value):
        raise _wrong(where, value, _WORDS[hint])
    return float(value) if hint is float else value


def _is(kind: Any, value: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str) and is_unicode(value)
    return isinstance(value, kind)


def _record(cls: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    hints = _hints(cls)
    if missing := hints.keys() - value.keys():
        raise ConfigError(f"{where} has no {min(missing)}")
    if unknown := value.keys() - hints.keys():
        raise ConfigError(f"{where} has a field {short_repr(min(unknown))}, which this version does not know")
    return cls(**{name: _value(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})


def _mapping(args: tuple[Any, ...], value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    whole = args[0] is int
    if whole and (bad := [key for key in value if not key.isdecimal()]):
        raise _wrong(where, bad[0], "whole numbers as names")
    return {int(key) if whole else key: _value(args[1], one, f"{where}[{key}]") for key, one in value.items()}


def _wrong(where: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{where} is {short_repr(value)} where {wanted} is needed")
