"""Keys: every request but those for the server's health and for the empty page needs one, where there are any."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwood.serve.errors import ApiError
from draftwood.serve.streams import error_response

_OPEN: Final = ("/health", "/")


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
        if scope["type"] != "http" or not self._digests or scope["path"] in _OPEN or self._fits(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "the key is missing or wrong: send the header Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer", "Connection": "close"},
        )
        await error_response(error)(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        """Whether the key is a known one, in the same time for all keys."""
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = _digest(given.strip().encode("utf-8", "surrogateescape"))
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(found) and kind.lower() == "bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
