"""What all other interfaces share: from a request to a chat, and from the chunks of an answer to events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Final, Literal, TypeAlias, final

from draftwood.core.checks import short_repr
from draftwood.serve.decoding.jobs import TextDelta
from draftwood.serve.http.errors import bad
from draftwood.serve.http.other_fields import OtherField, unsupported
from draftwood.serve.openai.answers import Answer
from draftwood.serve.openai.shapes import Shape
from draftwood.serve.openai.streams import Wire, line

Json: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["reasoning", "text", "call"]
_STREAM: Final = {"include_usage": True, "continuous_usage_stats": True}  # for the streams from which events are made
_FIGURES: Final = ("warnings", "metrics")  # of chats, which every answer has too
_ONE: Final = {"n": OtherField("this route gives one answer", (1,))}


@final
@dataclass(kw_only=True, eq=False)
class Part:
    """A part of an answer: reasoning, a text or a tool call.

    Attributes:
        index: among the parts of the answer.
        kind: of the part.
        text: so far; of a call its arguments, which are JSON.
        id, name: of a call.
        logprobs: of a text, one for every token, where the request wants them.
    """

    index: int
    kind: Kind
    text: str = ""
    id: str = ""
    name: str = ""
    logprobs: list[Json] = field(default_factory=list)


class Dialect(Wire, ABC):
    """One request in another interface, and its answer. The subclass says what answers and events look like.

    Args:
        made: fields of a chat, made of those of the request; null ones are left out.
        rest: other fields of the request, which are those of chats.
        stream: whether the request wants a stream.
        path: of the same request in OpenAI's interface.

    Attributes:
        chat, path: the same request for ``path``.
        head: ``id``, ``model`` and ``created`` of the answer; empty before its first chunk.
        parts: of the answer so far.
        usage: tokens so far, in OpenAI's words.
        finish_reason: None before the end.
        stop_text: of the request's stop texts the one that ended the answer.
        figures: what was ignored of the request, and what drafting brought.
        waited: nanoseconds until the model was there.
    """

    prefix: ClassVar[str]
    """Of the ids of answers."""
    others: ClassVar[Mapping[str, OtherField]]
    """Fields of the interface that this server does not have."""
    names: ClassVar[Mapping[str, str]] = {}
    """Those of chats that have another name here, by the one in chats."""

    def __init__(self, made: Json, rest: Json | None, stream: bool | None, path: str = "/v1/chat/completions") -> None:
        made |= {"stream": stream, "stream_options": _STREAM if stream else None}
        self.chat, self.path = _chat_of(rest or {}, made, self.others), path
        self.head: Json = {}
        self.parts: list[Part] = []
        self.usage: Json = {}
        self.finish_reason: str | None = None
        self.stop_text: str | None = None
        self.figures: Json = {}
        self.waited = 0
        self._open: tuple[Kind, int] | None = None  # the last part while it grows, with the number of its call

    def without_text(self, model: str) -> Json | None:
        """The whole answer of a request that wants no text; None for one that does."""
        return None

    def begin(self) -> Iterable[Json]:
        """The events before the first part."""
        return ()

    def start(self, part: Part) -> Iterable[Json]:
        """The events of a part that begins; it is empty."""
        return ()

    @abstractmethod
    def grow(self, part: Part, text: str, logprobs: Sequence[Json]) -> Iterable[Json]:
        """The events of a part that has grown by this."""

    @abstractmethod
    def stop(self, part: Part) -> Iterable[Json]:
        """The events of a part that is complete."""

    @abstractmethod
    def finish(self) -> Iterable[Json]:
        """The events after the last part."""

    @abstractmethod
    def answer(self) -> Json:
        """The whole answer."""

    @abstractmethod
    def fail(self, error: Json) -> Iterable[Json]:
        """The events of an error in OpenAI's shape, after which nothing comes."""

    def events(self, chunk: Json) -> Iterator[Json]:
        """The events of a chunk."""
        self.usage = chunk.get("usage") or self.usage
        self.figures |= {name: chunk[name] for name in _FIGURES if name in chunk}
        if not self.head:
            self.head = {name: chunk[name] for name in ("id", "model", "created")}
            yield from self.begin()
        for choice in chunk["choices"]:
            delta = choice.get("delta", {"content": choice.get("text")})
            logprobs = (choice.get("logprobs") or {}).get("content") or [] if delta.get("content") is not None else []
            yield from self._grow("reasoning", delta.get("reasoning_content") or "")
            yield from self._grow("text", delta.get("content") or "", logprobs)
            for call in delta.get("tool_calls") or ():
                said = call.get("function") or {}
                made = Part(index=0, kind="call", id=call.get("id") or "", name=said.get("name") or "")
                yield from self._grow("call", said.get("arguments") or "", [], call["index"], made)
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            self.stop_text = choice.get("stop_reason") or self.stop_text

    def ending(self) -> Iterator[Json]:
        """The events after the last chunk."""
        yield from self._close()
        yield from self.finish()

    def _grow(
        self, kind: Kind, text: str, logprobs: Sequence[Json] = (), number: int = 0, made: Part | None = None
    ) -> Iterator[Json]:
        if not (text or logprobs or made):
            return
        if self._open != (kind, number):
            yield from self._close()
            self._open = kind, number
            self.parts.append(made or Part(index=0, kind=kind))
            self.parts[-1].index = len(self.parts) - 1
            yield from self.start(self.parts[-1])
        self.parts[-1].text += text
        self.parts[-1].logprobs += logprobs
        if text or logprobs:
            yield from self.grow(self.parts[-1], text, logprobs)

    def _close(self) -> Iterator[Json]:
        if self._open is not None:
            self._open = None
            yield from self.stop(self.parts[-1])

    def named(self, id: str) -> str:
        return self.prefix + id.rpartition("-")[2]

    def gather(self, shape: Shape, answer: Answer, index: int, event: TextDelta) -> None:
        for chunk in shape.chunks(index, event):
            deque(self.events({**chunk, "usage": answer.usage()}), maxlen=0)

    def whole(self, shape: Shape, answer: Answer) -> Json:
        deque(chain(self.events(shape.last(answer)), self.ending()), maxlen=0)
        return self.answer() | self.figures

    def chunk(self, chunk: Json) -> bytes:
        return self.encoded(self.events(chunk))

    def end(self) -> bytes:
        return self.encoded(self.ending())

    def failed(self, error: Json) -> bytes:
        return self.encoded(self.fail(error))

    def encoded(self, events: Iterable[Json]) -> bytes:
        """Events as they are sent: with their types as names."""
        return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), line(event)) for event in events)


def _chat_of(rest: Json, made: Json, others: Mapping[str, OtherField]) -> Json:
    """The body of a chat: what was made of the fields of another interface, and the rest of them. Raises an ApiError for a
    field that this server does not have and that changes something, or that is also made of others."""
    chat, others = {name: value for name, value in made.items() if value is not None}, {**_ONE, **others}
    for name, value in rest.items():
        if (other := others.get(name)) is not None and not other.takes(value):
            raise unsupported(name, value, other.why)
        if name in chat:
            raise unsupported(name, value, "this route has another name for it")
        if other is None:
            chat[name] = value
    return chat


def without(given: Mapping[str, Any], *names: str) -> Json:
    """An object without some of its fields."""
    return {name: value for name, value in given.items() if name not in names}


def inside(name: str, given: Mapping[str, Any] | None, *known: str) -> Json:
    """The fields of an object that are not known, under their paths: chats ignore or refuse them as all unknown ones."""
    return {f"{name}.{inner}": value for inner, value in (given or {}).items() if inner not in known}


def objects(name: str, given: Any) -> list[Json]:
    """A list of objects; raises an ApiError for something else."""
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise bad(f"{name} is {short_repr(given)}: send a text, or a list of objects", param=name)
    return given
