"""Responses on the wire: JSON, and server-sent events."""

from __future__ import annotations

import json
from typing import Any, final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftwood.serve.answers import Answer, while_present
from draftwood.serve.bodies import DisconnectedError
from draftwood.serve.errors import ApiError
from draftwood.serve.jobs import TextDelta
from draftwood.serve.settings import KEEP_ALIVE_SECONDS
from draftwood.serve.shapes import Shape, figures

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@final
class Json(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _json(content)


def error_response(error: ApiError) -> Json:
    """The response of a refused or failed request."""
    return Json(error.to_json(), error.status, error.headers)


@final
class AnswerResponse(Response):
    """The response of a request for texts; the texts end when the client goes.

    Args:
        answer: the texts.
        shape: of the response.
        stream: send chunks as they are written.
        usage: a stream's last chunk has the usage.
        counts: all of its chunks have the usage so far.
    """

    def __init__(self, answer: Answer, shape: Shape, *, stream: bool, usage: bool, counts: bool = False) -> None:
        self.answer = answer
        self.shape = shape
        self.stream = stream
        self.usage = usage
        self.counts = counts
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._send_stream(scope, receive, send) if self.stream else self._send_whole(scope, receive, send)
        try:
            await while_present(receive, work)
        except (DisconnectedError, OSError):  # nobody reads any more
            pass
        finally:
            self.answer.close()

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        written: list[list[TextDelta]] = [[] for _ in range(self.answer.choices)]
        try:
            async for found in self.answer.events(KEEP_ALIVE_SECONDS):
                if found is not None:
                    written[found[0]].append(found[1])
        except ApiError as error:
            await error_response(error)(scope, receive, send)
        else:
            await Json(self.shape.whole(self.answer, written))(scope, receive, send)

    async def _send_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The status waits for the first event, so that a text that fails at once has the status of its error."""
        events = self.answer.events(KEEP_ALIVE_SECONDS)
        try:
            first = await anext(events)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            for index in range(self.answer.choices):
                await self._emit(send, self.shape.first(index))
            await self._forward(send, first)
            async for found in events:
                await self._forward(send, found)
            if self.usage:
                await self._emit(send, self.shape.last(self.answer))
        except ApiError as error:
            await _write(send, event(error.to_json()))
        await _write(send, b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _forward(self, send: Send, found: tuple[int, TextDelta] | None) -> None:
        if found is None:
            await _write(send, b": keep-alive\n\n")
            return
        chunks = self.shape.chunks(*found)
        if self.answer.complete and not self.usage:
            chunks[-1] |= figures(self.answer)
        for chunk in chunks:
            await self._emit(send, chunk)

    async def _emit(self, send: Send, chunk: dict[str, Any] | None) -> None:
        if chunk is not None:
            usage = {"usage": self.answer.usage() if self.counts else None} if self.usage or self.counts else {}
            await _write(send, event({**usage, **chunk}))


def event(content: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + _json(content) + b"\n\n"


async def _write(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
