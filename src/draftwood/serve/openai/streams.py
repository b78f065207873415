"""Responses on the wire: JSON, and server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from time import monotonic
from typing import Any, Final, TypeAlias, final

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from draftwood.sampling.settings import Sampling
from draftwood.serve.decoding.jobs import TextDelta
from draftwood.serve.http.errors import ApiError
from draftwood.serve.http.settings import KEEP_ALIVE_SECONDS
from draftwood.serve.openai.answers import Answer, while_present
from draftwood.serve.openai.schemas import StreamOptions
from draftwood.serve.openai.shapes import Shape, figures

EVENTS: Final = "text/event-stream"
DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream."""
KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment in a silent stream."""
Found: TypeAlias = tuple[int, TextDelta] | None
"""A choice and its event, or a silence."""


class Wire:
    """How an answer is written: here as it is, and its chunks as server-sent events. Errors come in OpenAI's shape."""

    media_type = EVENTS
    whole_calls = False
    """Whether calls come when they have ended, as an interface needs where their arguments are objects."""
    remarks: Sequence[str] = ()
    """What was left out of the request."""
    truncates = False
    """Whether a conversation that is too long loses its beginning."""
    sampling = Sampling()
    """How the text is drawn."""

    def __init__(self) -> None:
        self._gathered: dict[int, list[TextDelta]] = {}

    def named(self, id: str) -> str:
        """The answer's id."""
        return id

    def piece(self) -> None:
        """A piece of the text has come."""

    def gather(self, shape: Shape, answer: Answer, index: int, event: TextDelta) -> None:
        """Take an event of a choice of an answer that is sent whole."""
        self._gathered.setdefault(index, []).append(event)

    def whole(self, shape: Shape, answer: Answer) -> dict[str, Any]:
        """The answer, of which all events are gathered."""
        return shape.whole(answer, [TextDelta.joined(self._gathered[index]) for index in sorted(self._gathered)])

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        return event(chunk)

    def silence(self, chunk: dict[str, Any]) -> bytes:
        """What a silent stream gets; the chunk holds no text. Some clients hear no comments."""
        return self.chunk(chunk)

    def end(self) -> bytes:
        return DONE

    def failed(self, error: dict[str, Any]) -> bytes:
        return event(error) + DONE


@final
class AnswerResponse(Response):
    """The response of a request for texts; the texts end when the client goes. An ApiError before it begins is raised."""

    def __init__(self, answer: Answer, shape: Shape, options: StreamOptions | None, wire: Wire, *, stream: bool) -> None:
        self.wire = wire
        self.wire.sampling = answer.prepared.sampling
        self.answer = answer
        self.shape = shape
        self.stream = stream
        self.usage = options is not None and bool(options.include_usage)
        self.counts = options is not None and bool(options.continuous_usage_stats)
        self._sent = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._send_stream(send) if self.stream else self._send_whole(scope, receive, send)
        try:
            await while_present(receive, work)
        except (ClientDisconnect, OSError):  # nobody reads any more
            pass
        finally:
            self.answer.close()

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async for found in self.answer.events(KEEP_ALIVE_SECONDS):
            if found is not None:
                self.wire.piece()
                self.wire.gather(self.shape, self.answer, *found)
        await JSONResponse(self.wire.whole(self.shape, self.answer))(scope, receive, send)

    async def _send_stream(self, send: Send) -> None:
        """The status waits for the first event, so that a text that fails at once has the status of its error."""
        events = self.answer.events(KEEP_ALIVE_SECONDS)
        first = await anext(events)
        await event_stream(self._parts(first, events), self.wire.media_type).stream_response(send)

    async def _parts(self, first: Found, events: AsyncIterator[Found]) -> AsyncIterator[bytes]:
        try:
            for index in range(len(self.answer.prepared.requests)):
                if (chunk := self.shape.first(index)) is not None:
                    yield self._event(chunk)
            yield self._shown(first)
            async for found in events:
                yield self._shown(found)
            if self.usage:
                yield self._event(self.shape.last(self.answer))
            yield self.wire.end()
        except ApiError as error:
            yield self.wire.failed(error.to_json())

    def _shown(self, found: Found) -> bytes:
        """What is sent of a piece; a silence if that is nothing for too long, as while a call is written."""
        shown = b"" if found is None else self._piece(*found)
        if not shown and (found is None or monotonic() - self._sent > KEEP_ALIVE_SECONDS):
            shown = self.wire.silence(self.shape.silence())
        self._sent = monotonic() if shown else self._sent
        return shown

    def _piece(self, index: int, text: TextDelta) -> bytes:
        self.wire.piece()
        chunks = self.shape.chunks(index, text)
        if not self.answer.left and not self.usage:
            chunks[-1] |= figures(self.answer)
        return b"".join(map(self._event, chunks))

    def _event(self, chunk: dict[str, Any]) -> bytes:
        usage = {"usage": self.answer.usage() if self.counts else None} if self.usage or self.counts else {}
        return self.wire.chunk({**usage, **chunk})


def event_stream(parts: AsyncIterator[bytes], media_type: str = EVENTS) -> StreamingResponse:
    """The response of events, which no proxy keeps back."""
    return StreamingResponse(parts, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=media_type)


def event(content: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + line(content) + b"\n\n"


def line(content: Any) -> bytes:
    """JSON in one line."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
