"""Bodies that nobody has read when the answer is sent."""

from __future__ import annotations

import asyncio
from contextlib import suppress
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
        waits = "expect" in Headers(scope=scope)  # the client sends it only after a sign of the server
        ended = False

        async def receive_noting() -> Message:
            nonlocal waits, ended
            message = await receive()
            waits, ended = False, ended or not message.get("more_body", False)  # also of a connection that was cut
            return message

        async def drop() -> None:
            """Read what is left, within limits of bytes and time."""
            dropped = 0
            with suppress(TimeoutError):
                async with asyncio.timeout(BODY_SECONDS):
                    while not (ended or waits) and dropped <= MAX_DROPPED:
                        async with asyncio.timeout(SILENT_SECONDS):
                            dropped += len((await receive_noting()).get("body", b""))

        async def send_after(message: Message) -> None:
            if message["type"] == "http.response.start":
                await drop()
            await send(message)

        await self._app(scope, receive_noting, send_after)
