"""Responses on the wire: JSON, and events in streams."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from time import monotonic, time
from typing import Any, ClassVar, Final, TypeAlias
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from draftwood.core.token_texts import TokenTexts
from draftwood.serve.decoding.jobs import TextDelta
from draftwood.serve.http.errors import ApiError
from draftwood.serve.http.settings import KEEP_ALIVE_SECONDS
from draftwood.serve.openai.answers import Answer, while_present

Json: TypeAlias = dict[str, Any]
EVENTS: Final = "text/event-stream"
DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream."""
KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment in a silent stream."""


class Shape(Response, ABC):
    """The response to a request for texts: how its answer is written, whole and as a stream of events.

    Attributes:
        answer, model, texts: what is written, the model's name in it, and texts of single tokens.
        stream: whether it is sent as events.
        id, created: of the answer; all of these are there after :meth:`open`.
    """

    prefix: ClassVar[str]
    """Of the ids of answers."""
    media_type = EVENTS
    closing: ClassVar[bytes] = b""
    """The end of a stream."""
    whole_calls = False
    """Whether calls come when they have ended, as an interface needs where their arguments are objects."""
    truncates = False
    """Whether a conversation that is too long loses its beginning."""
    answer: Answer
    model: str
    texts: TokenTexts

    def open(self, answer: Answer, model: str, texts: TokenTexts, *, stream: bool) -> None:
        """Take what is to be written. All events have one id, which is that of the trace too."""
        self.answer, self.model, self.texts, self.stream, self._sent = answer, model, texts, stream, monotonic()
        self.id, self.created = self.prefix + uuid4().hex, int(time())

    @abstractmethod
    def first(self) -> Iterable[Json]:
        """The events before the text."""

    @abstractmethod
    def chunks(self, index: int, event: TextDelta) -> Iterable[Json]:
        """The events of a further part of a choice's text."""

    @abstractmethod
    def last(self) -> Iterable[Json]:
        """The events after the text."""

    @abstractmethod
    def silence(self) -> Json:
        """What a silent stream gets: an event without text, since some clients hear no comments."""

    @abstractmethod
    def fail(self, error: Json) -> Json:
        """The event of an error in OpenAI's shape, after which nothing comes."""

    @abstractmethod
    def whole(self, texts: Sequence[Sequence[TextDelta]]) -> Json:
        """The whole answer, of all parts of each choice's text."""

    def encoded(self, events: Iterable[Json]) -> bytes:
        """Events as they are sent."""
        return b"".join(map(event, events))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; its texts end when the client goes. Raises an ApiError before it begins."""
        work = self._send_stream(send) if self.stream else self._send_whole(scope, receive, send)
        try:
            await while_present(receive, work)
        except (ClientDisconnect, OSError):  # nobody reads any more
            pass
        finally:
            self.answer.close()

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        texts: list[list[TextDelta]] = [[] for _ in self.answer.jobs]
        async for found in self.answer.events(KEEP_ALIVE_SECONDS):
            if found is not None:
                texts[found[0]].append(found[1])
        await JSONResponse(self.whole(texts))(scope, receive, send)

    async def _send_stream(self, send: Send) -> None:
        """The status waits for the first event, so that a text that fails at once has the status of its error."""
        events = self.answer.events(KEEP_ALIVE_SECONDS)
        first = await anext(events)
        await event_stream(self._parts_of(first, events), self.media_type).stream_response(send)

    async def _parts_of(
        self, first: tuple[int, TextDelta] | None, events: AsyncIterator[tuple[int, TextDelta] | None]
    ) -> AsyncIterator[bytes]:
        try:
            yield self.encoded(self.first())
            yield self._shown(first)
            async for found in events:
                yield self._shown(found)
            yield self.encoded(self.last()) + self.closing
        except ApiError as error:
            yield self.encoded([self.fail(error.to_json())]) + self.closing

    def _shown(self, found: tuple[int, TextDelta] | None) -> bytes:
        """What is sent of a piece; a silence if that is nothing for too long, as while a call is written."""
        shown = b"" if found is None else self.encoded(self.chunks(*found))
        if not shown and (found is None or monotonic() - self._sent > KEEP_ALIVE_SECONDS):
            shown = self.encoded([self.silence()])
        self._sent = monotonic() if shown else self._sent
        return shown


def event_stream(parts: AsyncIterator[bytes], media_type: str = EVENTS) -> StreamingResponse:
    """The response of events, which no proxy keeps back."""
    return StreamingResponse(parts, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=media_type)


def event(content: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + line(content) + b"\n\n"


def line(content: Any) -> bytes:
    """JSON in one line."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
