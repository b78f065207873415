"""Traces as JSON files.

A file is one object: ``format``, ``version`` and ``traces``. Another version is refused, because a trace is evidence: a
field that is read in another sense would show what did not happen.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar, Union

from draftwood.core.checks import is_unicode, short_repr
from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.core.rounds import STAGES
from draftwood.trace.records import Distribution, Node, Trace, TracedRound

T = TypeVar("T")
FORMAT: Final = "draftwood trace"
VERSION: Final = 2
_ROUNDING = 1e-4
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


def check(trace: Trace, where: str) -> None:
    """Refuse a trace that no run can have made.

    Raises:
        ConfigError: names the place and what is wrong there.
    """
    for problem in _problems(trace):
        raise ConfigError(f"{where}{problem}")


def _problems(trace: Trace) -> Iterator[str]:
    position, end = len(trace.prompt) - 1, 0.0
    if not trace.prompt:
        yield ".prompt is empty"
    if trace.dropped < 0:
        yield f".dropped is {trace.dropped}"
    so_far: list[int] = []
    for number, one in enumerate(trace.rounds):
        at = f".rounds[{number}]"
        if one.number != number or one.position != position + len(so_far):
            yield f"{at} is not the round that follows the one before"
        if one.end < end:
            yield f"{at}.end is before the round begins"
        root = so_far[-1] if so_far else trace.prompt[-1]
        if not one.nodes or one.nodes[0].token != root:
            yield f"{at}.nodes does not begin with the last token of the text"
        yield from (at + problem for problem in _in_round(one))
        so_far, end = so_far + one.tokens, one.end
    whole = trace.dropped == 0
    if so_far != (trace.tokens if whole else trace.tokens[: len(so_far)]):
        yield ".tokens are not those of its rounds"
    if trace.texts and (missing := {*trace.prompt, *trace.source, *trace.tokens} - trace.texts.keys()):
        yield f".texts has no text for token {min(missing)}"


def _in_round(one: TracedRound) -> Iterator[str]:
    if one.draw not in list(Draw):
        yield f".draw is {one.draw!r}, which this version does not know"
    if set(one.seconds) != set(STAGES) or min(one.seconds.values()) < 0.0:
        yield f".seconds does not have the stages {', '.join(STAGES)}"
    count = len(one.nodes)
    yield from _in_tree(one.nodes)
    if any(not 0 < node < count for node in one.path) or any(
        one.nodes[child].parent != parent for parent, child in pairwise([0, *one.path])
    ):
        yield ".path is no path of the tree"
        return
    verdicts = [i for i, node in enumerate(one.nodes) if node.verdict == "accepted"]
    if verdicts != sorted(one.path):
        yield ".path is not that of the accepted nodes"
    made = [*(one.nodes[node].token for node in one.path), one.next_token]
    if not 0 < len(one.tokens) <= len(made) or one.tokens[:-1] != made[: len(one.tokens) - 1]:
        yield ".tokens are not those of the path"
    if "".join(part.text for part in one.parts) != one.text:
        yield ".parts are not those of its text"
    for i, trial in enumerate(one.trials):
        if not 0 < trial.node < count:
            yield f".trials[{i}].node is no drafted node"
        numbers = {"target_prob": trial.target_prob, "draft_prob": trial.draft_prob}
        yield from _probabilities(f".trials[{i}]", {**numbers, "chance": trial.chance, "uniform": trial.uniform})
        for name, found in (("residual", trial.residual), ("proposal", trial.proposal)):
            yield from _in_distribution(f".trials[{i}].{name}", found)
    if any(not 0 <= choice.node < count for choice in one.choices):
        yield ".choices names a node that is not there"
    yield from _in_distribution(".next_from", one.next_from)
    yield from _probabilities("", {"uniform": one.uniform, "path_uniform": one.path_uniform})


def _in_tree(nodes: list[Node]) -> Iterator[str]:
    children = [0] * len(nodes)
    for i, node in enumerate(nodes):
        at = f".nodes[{i}]"
        if i == 0:
            if (node.parent, node.depth, node.rank, node.verdict) != (None, 0, 0, "root"):
                yield f"{at} is no root"
        elif node.parent is None or not 0 <= node.parent < i:
            yield f"{at}.parent is {node.parent}, but parents come before their children"
        else:
            if node.depth != nodes[node.parent].depth + 1 or node.rank != children[node.parent]:
                yield f"{at} has the wrong depth or rank"
            if node.verdict == "root":
                yield f"{at} is a second root"
            children[node.parent] += 1
        yield from _probabilities(at, {"target_prob": node.target_prob, "draft_prob": node.draft_prob})
        for name, found in (("target", node.target), ("draft", node.draft)):
            yield from _in_distribution(f"{at}.{name}", found)


def _probabilities(at: str, numbers: dict[str, float | None]) -> Iterator[str]:
    for name, number in numbers.items():
        if number is not None and not 0.0 <= number <= 1.0:
            yield f"{at}.{name} is {number}, but a probability is from 0 to 1"


def _in_distribution(at: str, found: Distribution | None) -> Iterator[str]:
    if found is None:
        return
    if len(found.tokens) != len(found.probs) or len(set(found.tokens)) != len(found.tokens):
        yield f"{at} does not have one probability for each token"
    yield from _probabilities(at, {"rest": found.rest, **{f"probs[{i}]": prob for i, prob in enumerate(found.probs)}})
    if found.probs != sorted(found.probs, reverse=True):
        yield f"{at} is not in falling order"
    if found.probs and abs(sum(found.probs) + found.rest - 1.0) > _ROUNDING:
        yield f"{at} does not sum to 1"
