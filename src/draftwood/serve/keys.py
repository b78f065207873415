"""Keys: every request but those for the server's health and for the empty page needs one, where there are any."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwood.serve.errors import ApiError, error_response

_OPEN: Final = ("/health", "/")
SALT: Final = "draftwood.cache_salt"
"""In a scope, what the prefix cache knows requests of one key by."""


@final
class Keys:
    """Refuses requests without a key.

    Args:
        app: gets the others.
        keys: the keys; without any, all requests pass.
    """

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
                await error_response(_wrong_key(), scope["path"])(scope, receive, send)
                return
            scope[SALT] = digest.hex()
        await self._app(scope, receive, send)


def _wrong_key() -> ApiError:
    return ApiError(
        401,
        "the key is missing or wrong: send the header Authorization: Bearer KEY, or x-api-key: KEY",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
