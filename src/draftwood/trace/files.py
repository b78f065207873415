"""Traces as JSON files.

A file is one object: ``format``, ``version`` and ``traces``. Another version is refused, because a trace is evidence: a
field that is read in another sense would show what did not happen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.trace.checks import check
from draftwood.trace.plain import plain, record
from draftwood.trace.records import Trace

FORMAT: Final = "draftwood trace"
VERSION: Final = 2


def to_json(traces: Sequence[Trace]) -> dict[str, Any]:
    """The object of a file."""
    return {"format": FORMAT, "version": VERSION, "traces": [plain(trace) for trace in traces]}


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


def from_json(found: Any) -> list[Trace]:
    """The traces of an object.

    Raises:
        ConfigError: it is not what :func:`to_json` makes, or no run can have made it.
    """
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f"it does not say that its format is {FORMAT!r}")
    if found.get("version") != VERSION or isinstance(found["version"], bool):
        raise ConfigError(f"its version is {found.get('version')!r}, and this Draftwood reads version {VERSION}")
    if set(found) != {"format", "version", "traces"} or not isinstance(found["traces"], list):
        raise ConfigError("it has other fields than format, version and traces, or traces is no list")
    traces = []
    for i, one in enumerate(found["traces"]):
        trace = record(Trace, one, f"traces[{i}]")
        check(trace, f"traces[{i}]")
        traces.append(trace)
    return traces


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
