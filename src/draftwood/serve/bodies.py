"""Bodies of requests: read within limits, and parsed with clear errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import Request

from draftwood.core.checks import is_unicode, short_repr
from draftwood.serve.errors import ApiError, bad
from draftwood.serve.settings import BODY_SECONDS, MAX_BODY, MAX_DEPTH, MAX_MEMBERS


async def read_body(request: Request) -> bytes:
    """The body of a request, which must be JSON.

    Raises:
        ApiError: another type of content, a body that is too large or too slow.
        ClientDisconnect: the connection was cut.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise bad(
            f"the content type is {short_repr(kind)}: send Content-Type: application/json", code="invalid_content_type"
        )
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _body(request)
    except TimeoutError:
        raise ApiError(408, f"the request was not complete after {BODY_SECONDS:g} seconds", code="timeout") from None


async def _body(request: Request) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > MAX_BODY:
        raise _too_large()
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise _too_large()
        parts.append(part)
    return b"".join(parts)


def _too_large() -> ApiError:
    return ApiError(
        413,
        f"the request is larger than {MAX_BODY >> 20} MiB: send less",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def parse(body: bytes) -> dict[str, Any]:
    """The object in a body.

    Raises:
        ApiError: no JSON, no object, a key given twice, a number or a text that cannot be read, or too many levels.
    """
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # JSON, UTF-8, and integers of thousands of digits
        raise bad(f"the body is no JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise bad(f"the body is {short_repr(found)}: send a JSON object", code="invalid_json")
    _check(found)
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_MEMBERS:
        raise bad(f"an object of the body has {len(pairs)} members: send at most {MAX_MEMBERS}", code="invalid_json")
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise bad(f"the body holds {short_repr(key)} twice: send it once", code="invalid_json")
        found[key] = value
    return found


def _constant(name: str) -> NoReturn:
    raise bad(f"the body holds {name}, which is no JSON: send a number", code="invalid_json")


def _check(whole: dict[str, Any]) -> None:
    """Refuse what is nested too deeply and texts that are no Unicode."""
    level: list[Any] = [whole]
    for _ in range(MAX_DEPTH):
        texts = [key for one in level if isinstance(one, dict) for key in one]
        inner = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        if wrong := [one for one in (*texts, *inner) if isinstance(one, str) and not is_unicode(one)]:
            raise bad(f"the text {short_repr(wrong[0])} holds half of a surrogate pair: send Unicode", code="invalid_text")
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return bad(f"the body has more than {MAX_DEPTH} levels of lists and objects: send fewer", code="invalid_json")
