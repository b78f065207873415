"""Paths as clients write them."""

from __future__ import annotations

import re
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send


@final
class Paths:
    """Reads a path without doubled slashes and without one at its end, as addresses that end with one make them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": re.sub("/+", "/", scope["path"]).rstrip("/") or "/"}
        await self._app(scope, receive, send)
