"""Bodies of requests: read within limits, and parsed with clear errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request

from draftwood.core.checks import short_repr
from draftwood.serve.errors import ApiError, bad
from draftwood.serve.settings import BODY_SECONDS, MAX_BODY


async def read_body(request: Request) -> dict[str, Any]:
    """The object in the body of a request.

    Raises:
        ApiError: another type of content, a body that is too large or too slow, no JSON, no object, or a key given twice.
        ClientDisconnect: the connection was cut.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise bad(
            f"the content type is {short_repr(kind)}: send Content-Type: application/json", code="invalid_content_type"
        )
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await _body(request)
    except TimeoutError:
        raise ApiError(408, f"the request was not complete after {BODY_SECONDS:g} seconds", code="timeout") from None
    return await asyncio.to_thread(_parsed, data)


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
    return ApiError(413, f"the request is larger than {MAX_BODY >> 20} MiB: send less", code="request_too_large")


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        from_json(body, allow_inf_nan=False)  # refuses what json takes: other encodings, NaN, half of a surrogate pair
        found = json.loads(body, object_pairs_hook=_object)
    except ValueError as error:
        raise bad(f"the body cannot be read as JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise bad(f"the body is {short_repr(found)}: send a JSON object", code="invalid_json")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise bad(f"the body holds {short_repr(key)} twice: send it once", code="invalid_json")
        found[key] = value
    return found
