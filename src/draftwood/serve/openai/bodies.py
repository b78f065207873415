"""Bodies of requests: read within limits, and parsed and checked with clear errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from draftwood.core.checks import short_repr
from draftwood.serve.http.errors import ApiError, bad
from draftwood.serve.http.fields import NO_LIMIT, Body, without_others
from draftwood.serve.http.log import ENTRY
from draftwood.serve.http.settings import UnknownFields
from draftwood.serve.openai.schemas import ChatBody, CompletionBody, Settings, TemplateFields
from draftwood.serve.openai.tools import check_tools

B = TypeVar("B", bound=Body)
_ROUTES: Final[Mapping[str, type[Body]]] = {"/v1/chat/completions": ChatBody, "/v1/completions": CompletionBody}
MAX_BODY: Final = 4 << 20  # bytes
_UNSAID: Final = ("", "application/x-www-form-urlencoded")  # none, and that of curl -d; pages may send them anywhere unasked
BODY_SECONDS: Final = 30.0  # until a request is complete
NAMED: Final = 8
"""Ignored parts of a request in its remarks."""
_LONGEST: Final = 80  # characters of their names in the log
_TYPES: Final = ("str", "int", "float", "bool", "NamedTool", "AllowedTools", "Speculative")
_MAX_LEVELS, _MAX_MEMBERS = 64, 4096  # levels of lists and objects in a body, and members of an object
_NO_NESTING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^][{}"]++')


async def read_body(request: Request) -> dict[str, Any]:
    """The object in the body of a request.

    Raises:
        ApiError: another type of content, a body that is too large or too slow, no JSON, no object, a key given twice.
        ClientDisconnect: the connection was cut.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and (kind not in _UNSAID or "origin" in request.headers):
        raise bad(
            f"the content type is {short_repr(kind)}: send Content-Type: application/json", code="invalid_content_type"
        )
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > MAX_BODY:
        raise _too_large()
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > MAX_BODY:
                    raise _too_large()
    except TimeoutError:
        raise ApiError(408, f"the request was not complete after {BODY_SECONDS:g} seconds", code="timeout") from None
    return await asyncio.to_thread(_parsed, bytes(data))


def _too_large() -> ApiError:
    return ApiError(413, f"the request is larger than {MAX_BODY >> 20} MiB: send less", code="request_too_large")


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        from_json(body, allow_inf_nan=False)  # refuses what json takes: other encodings, NaN, half of a surrogate pair
        levels = accumulate(1 if sign in b"[{" else -1 for sign in _NO_NESTING.sub(b"", body))
        if max(levels, default=0) > _MAX_LEVELS:
            raise bad(f"the body has more than {_MAX_LEVELS} levels of lists and objects: send fewer", code="invalid_json")
        found = json.loads(body, object_pairs_hook=_object)
    except ValueError as error:
        raise bad(f"the body cannot be read as JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise bad(f"the body is {short_repr(found)}: send a JSON object", code="invalid_json")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_MEMBERS:
        raise bad(f"an object of the body has {len(pairs)} members: send at most {_MAX_MEMBERS}", code="invalid_json")
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise bad(f"the body holds {short_repr(key)} twice: send it once", code="invalid_json")
        found[key] = value
    return found


def checked(kind: type[B], body: Mapping[str, Any], unknown: UnknownFields = "remark") -> tuple[B, list[str]]:
    """A body as an object, and remarks about ignored fields; raises an ApiError that names the first refused field."""
    found = validated(kind, without_others(body))
    paths = _unknown(found, unknown)
    if (entry := ENTRY.get()) is not None:
        entry.ignored = [path[:_LONGEST] for path in paths]
    if isinstance(found, Settings):
        _check_together(found)
    if isinstance(found, TemplateFields):
        _check_template(found)
    return found, ignored([f"the server has no field {short_repr(path)}" for path in paths])


def ignored(lines: Sequence[str]) -> list[str]:
    """Remarks on what is ignored, the first ones."""
    return [*(f"{line}, so it was ignored" for line in lines[:NAMED]), *(["and others"] if len(lines) > NAMED else [])]


def _unknown(found: Body, rule: UnknownFields) -> list[str]:
    """The paths of fields that are ignored, the first ones; a field of another route is refused, unless false or empty."""
    bodies = _ROUTES if isinstance(found, Settings) else {}
    elsewhere = {name: route for route, kind in bodies.items() for name in kind.model_fields}
    for name, value in (found.model_extra or {}).items():
        if name in elsewhere and value is not None and value is not False and value != "":
            raise bad(f"{name} belongs to {elsewhere[name]}: leave it out", param=name, code="unsupported_parameter")
    paths = list(islice((path for path in found.unknown() if path not in elsewhere), NAMED + 1))
    if paths and rule == "refuse":
        raise _no_field(paths[0])
    return paths


async def read(request: Request, kind: type[B]) -> B:
    """The body of a request as an object; raises as :func:`read_body` and :func:`validated`."""
    return await asyncio.to_thread(validated, kind, await read_body(request))


def validated(kind: type[B], data: Mapping[str, Any]) -> B:
    """A body as an object; raises an ApiError that names the first field that is missing or refused."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _named(error) from None


def _named(error: ValidationError) -> ApiError:
    """The error of the first field at fault; of its alternatives, of that which was read furthest."""
    found = [(_names_in(one["loc"]), one) for one in error.errors(include_url=False, include_context=False)]
    begin = found[0][0][: 3 if any(isinstance(part, int) for part in found[0][0][1:2]) else 1]
    where, first = max((one for one in found if one[0][: len(begin)] == begin), key=_read_until)
    field, path = (".".join(map(str, names)) for names in (begin, where))
    if first["type"] == "missing":
        return bad(f"{path} is missing: send it", param=field, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return _no_field(".".join(map(str, first["loc"])))
    message = first["msg"].removeprefix("Value error, ").partition(" or instance of")[0].replace("dictionary", "object")
    reason = message[:1].lower() + message[1:]
    return bad(f"{path} is {short_repr(first['input'])}: {reason}", param=field, code="invalid_value")


def _names_in(loc: Sequence[int | str]) -> list[int | str]:
    """The names and numbers in an error's path, without the types that pydantic writes for alternatives."""
    return [one for one in loc if isinstance(one, int) or one.isdecimal() or (one.isidentifier() and one not in _TYPES)]


def _read_until(found: tuple[list[int | str], ErrorDetails]) -> tuple[int, list[int], bool]:
    """How far an alternative was read until its error: its depth, its positions in lists, and whether its type was right."""
    where, error = found
    return len(where), [part for part in where if isinstance(part, int)], not error["type"].endswith("_type")


def _no_field(path: str) -> ApiError:
    name = path.rpartition(".")[2]
    return bad(f"the server has no field {short_repr(name)}: leave it out", param=path, code="unknown_parameter")


def _check_together(body: Settings) -> None:
    if body.stream_options is not None and not body.stream:
        raise bad("stream_options is for streams, and stream is false: leave it out", param="stream_options")
    if isinstance(body, ChatBody):
        _check_chat(body)
    elif body.max_tokens == 0 and not (isinstance(body, CompletionBody) and body.echo):
        raise bad("max_tokens is 0, so nothing is written: send 1 or more, or echo to score the prompt", param="max_tokens")
    if isinstance(body, CompletionBody) and body.suffix and body.echo:
        raise bad("echo and suffix exclude each other, as the prompt does not end at the text: send one", param="echo")
    form = body.response_format
    if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
        raise bad("response_format.json_schema belongs to type json_schema: send both, or neither", param="response_format")
    if body.min_tokens and body.stops:
        raise bad("min_tokens and stop exclude each other: a stop text may come at any token; send one", param="min_tokens")


def _check_chat(body: ChatBody) -> None:
    names = ("max_tokens", "max_completion_tokens")
    limits = {name: value for name in names if (value := getattr(body, name)) not in (None, NO_LIMIT)}
    if len(set(limits.values())) > 1:
        both = " and ".join(f"{name} is {value}" for name, value in limits.items())
        raise bad(f"{both}, but a text has one limit: send one of them", param="max_tokens")
    if empty := [name for name, value in limits.items() if value == 0]:
        raise bad(f"{empty[0]} is 0, so nothing is written: send 1 or more", param=empty[0])
    if body.top_logprobs and not body.logprobs:
        raise bad("top_logprobs belongs to logprobs, which is not true: send both, or neither", param="top_logprobs")


def _check_template(body: TemplateFields) -> None:
    check_tools(body.tools, body.tool_choice)
    if body.continue_final_message and body.add_generation_prompt:
        raise bad(
            "continue_final_message and add_generation_prompt are both true, but the answer continues the last message or "
            "begins another one: send one of them",
            param="continue_final_message",
        )
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise bad(
            "add_generation_prompt is false, but only an answer that continues the last message begins without it: send "
            "continue_final_message too, or neither",
            param="add_generation_prompt",
        )
