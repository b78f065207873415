"""Traces as JSON files.

A file is one object: ``format``, ``version``, ``traces`` and ``digests``, one of each trace. A trace is evidence, and an
edited file, or one of another version, would show what did not happen. So these are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn, Union

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.trace.records import Trace

FORMAT: Final = "draftwood trace"
VERSION: Final = 3


def to_json(traces: Sequence[Trace]) -> dict[str, Any]:
    """The object of a file."""
    made = [_plain(trace) for trace in traces]
    return {"format": FORMAT, "version": VERSION, "digests": [*map(_digest, made)], "traces": made}


def from_json(found: Any) -> list[Trace]:
    """The traces of an object.

    Raises:
        ConfigError: it is not what :func:`to_json` makes.
    """
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f"it does not say that its format is {FORMAT!r}")
    if found.get("version") != VERSION or isinstance(found["version"], bool):
        raise ConfigError(f"its version is {found.get('version')!r}, and this Draftwood reads version {VERSION}")
    made = found.get("traces")
    if not isinstance(made, list) or found.get("digests") != [*map(_digest, made)]:
        raise ConfigError("its traces have other digests than it says, so it was edited: record it again")
    traces: list[Trace] = _record(list[Trace], made)
    return traces


def write_traces(path: str | Path, traces: Sequence[Trace]) -> None:
    """Write a file.

    Raises:
        OSError: the file cannot be written.
    """
    replace_file(Path(path), json.dumps(to_json(traces), ensure_ascii=False, allow_nan=False) + "\n")


def read_traces(path: str | Path) -> list[Trace]:
    """The traces of a file.

    Raises:
        ConfigError: a file that cannot be read, is cut or edited, or has another version; one sentence.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = json.loads(text, parse_constant=_no_constant)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no complete trace, because it is not JSON ({error}): record it again") from error
    try:
        return from_json(found)
    except ConfigError as error:
        raise ConfigError(f"{path} is no trace of a run: {error}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _digest(trace: Any) -> str:
    """The SHA-256 digest of a trace as plain values, of which JavaScript may have written 1.0 as 1 and -0.0 as 0."""
    values = json.loads(json.dumps(trace), parse_int=_number, parse_float=_number)
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _number(text: str) -> float:
    return float(text) + 0.0


def _plain(trace: Trace) -> Any:
    """A trace as dictionaries, lists, texts and numbers."""
    return json.loads(json.dumps(trace, default=vars))


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass and their types."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _record(hint: Any, value: Any) -> Any:
    """The opposite of :func:`_plain`, by the type of the record."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint(**{name: _record(field, value[name]) for name, field in _hints(hint).items()})
    if origin in (Union, types.UnionType):
        return None if value is None else _record(args[0], value)
    if origin is list:
        return value if args[0] in (int, float, str) else [_record(args[0], one) for one in value]
    if origin is dict:
        return {args[0](key): one for key, one in value.items()}
    return value
