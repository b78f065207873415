"""Bodies that nobody has read when the answer is sent."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwood.serve.settings import BODY_SECONDS, MAX_DROPPED, SILENT_SECONDS


@final
class UnreadBodies:
    """Reads the rest of a request before the answer to it is sent, and drops it.

    A connection that is closed with unread bytes is reset: a client that is still sending would never see its answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, waits="expect" in Headers(scope=scope))
        await self._app(scope, body.receive, partial(_answer, body, send))


async def _answer(body: _Body, send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        await body.drop()
    await send(message)


@final
class _Body:
    """The body of a request.

    Args:
        receive: the server's.
        waits: the client sends it only after a sign of the server (``Expect: 100-continue``).
    """

    def __init__(self, receive: Receive, *, waits: bool) -> None:
        self._receive = receive
        self._waits = waits
        self._ended = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._waits = False
        self._ended = self._ended or not message.get("more_body", False)  # also of a connection that was cut
        return message

    async def drop(self) -> None:
        """Read what is left, within limits of bytes and time."""
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(BODY_SECONDS):
                while not (self._ended or self._waits) and dropped <= MAX_DROPPED:
                    async with asyncio.timeout(SILENT_SECONDS):
                        message = await self.receive()
                    dropped += len(message.get("body", b""))
