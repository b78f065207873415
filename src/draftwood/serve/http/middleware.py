"""What every request passes: it gets a plain path, an id and a line in the log, and it needs a key where there are any."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final, final
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwood.serve.http.errors import ApiError, error_response, refused
from draftwood.serve.http.log import ENTRY, REQUESTS, Entry

_HEADER: Final = "x-request-id"
_SANE: Final = re.compile(r"[\w.:+/=-]{1,128}", re.ASCII)
_QUIET: Final = ("/health", "/metrics")  # polled every few seconds
_LONGEST: Final = 200  # characters of a route
_GONE: Final = 499  # as other servers log a client that did not wait for its answer
_OPEN: Final = ("/health", "/")  # for all: the server's health, and the empty page
SALT: Final = "draftwood.cache_salt"
"""In a scope, what the prefix cache knows requests of one key by."""
_WRONG_KEY: Final = ApiError(
    401,
    "the key is missing or wrong: send the header Authorization: Bearer KEY, or x-api-key: KEY",
    code="invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
)


@final
class RequestLog:
    """Logs requests, and answers those whose handler failed. Their paths lose doubled slashes and one at the end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": re.sub("/+", "/", scope["path"]).rstrip("/") or "/"}
        given, began = Headers(scope=scope).get(_HEADER, ""), perf_counter()
        entry = Entry(id=given if _SANE.fullmatch(given) else f"req-{uuid4().hex}")
        ENTRY.set(entry)
        status, ended = None, False

        async def send_noting(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[_HEADER] = entry.id
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception as error:
            if status is not None:  # too late for an answer; the connection ends, and its server logs the cause
                raise
            await error_response(refused(error), scope["path"])(scope, receive, send_noting)
        finally:
            _log(scope, entry, status if ended and status is not None else _GONE, perf_counter() - began)
            entry.counts = None  # the context of this request outlives it in timers of the connection


def _log(scope: Scope, entry: Entry, status: int, seconds: float) -> None:
    if scope["path"] in _QUIET and status == 200:
        return
    fields: dict[str, Any] = {"id": entry.id, "route": f"{scope['method']} {scope['path']}"[:_LONGEST], "status": status}
    fields |= {} if entry.counts is None else entry.counts()
    fields |= {"seconds": round(seconds, 3)} | ({} if entry.error is None else {"error": entry.error})
    fields |= {"ignored": list(entry.ignored)} if entry.ignored else {}
    given = ("route", "ignored")  # by the client
    text = " ".join(f"{name}={json.dumps(value) if name in given else value}" for name, value in fields.items())
    REQUESTS.info("%s", text, extra={"fields": fields})


@final
class Keys:
    """Refuses requests without a key, where there are keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._digests and scope["path"] not in _OPEN:
            headers = Headers(scope=scope)
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer":
                given = headers.get("x-api-key", "")
            digest = _digest(given.strip().encode("utf-8", "surrogateescape"))
            if not any([hmac.compare_digest(digest, known) for known in self._digests]):  # the whole list, for equal times
                await error_response(_WRONG_KEY, scope["path"])(scope, receive, send)
                return
            scope[SALT] = digest.hex()
        await self._app(scope, receive, send)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
