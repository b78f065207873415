"""What all other interfaces share: from a request to a chat, and from the parts of an answer to events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Final, NamedTuple

from draftwood.core.checks import short_repr
from draftwood.core.token_texts import TokenTexts
from draftwood.serve.decoding.jobs import TextDelta
from draftwood.serve.http.errors import bad
from draftwood.serve.http.fields import OtherField, unsupported, without_others
from draftwood.serve.openai.answers import Answer
from draftwood.serve.openai.message import AnswerReader
from draftwood.serve.openai.reading import New, Part
from draftwood.serve.openai.shapes import chat_logprobs, figures
from draftwood.serve.openai.streams import Json, Shape, line

CHATS: Final = "/v1/chat/completions"
_EVERYWHERE: Final = {
    "n": OtherField("this route gives one answer", (1,)),
    "stream_options": OtherField("the last event of this route's streams has the usage", ({}, {"include_usage": True})),
}


class Remark(NamedTuple):
    """A remark on what is not honoured: the field, what is said of it, and what was done. Its text joins all three."""

    field: str
    says: str
    done: str = ", so it was left out"

    def __str__(self) -> str:
        return f"{self.field} {self.says}{self.done}"


SHORTENING: Final = Remark("context_management", "is for servers that shorten conversations", ", so it was ignored")


class Dialect(Shape, ABC):
    """One request in another interface, and its answer. The subclass says what answers and events look like.

    Args:
        made: fields of a chat, made of those of the request; null ones are left out.
        rest: other fields of the request, which are those of chats.
        stream: whether the request wants a stream.
        path: of the same request in OpenAI's interface.

    Attributes:
        chat, path: the same request for ``path``.
        finish_reason: None before the end.
        stop_text: of the request's stop texts the one that ended the answer.
    """

    others: ClassVar[dict[str, OtherField]]
    """Fields of the interface that this server does not have."""
    remarks: Sequence[Remark] = ()
    """On what was left out of the request."""
    names: ClassVar[Mapping[str, str]] = {}
    """Those of chats that have another name here, by the one in chats."""

    def __init__(self, made: Json, rest: Json | None, stream: bool | None, path: str = CHATS) -> None:
        self.chat, self.path = _chat_of(rest or {}, {**made, "stream": stream}, self.others), path
        self.finish_reason: str | None = None
        self.stop_text: str | None = None
        self._open: Part | None = None  # the last part, while it may grow
        self._scored: list[Json] = []  # log-probabilities of tokens of which nothing is certain yet

    def open(self, answer: Answer, model: str, texts: TokenTexts, *, stream: bool) -> None:
        super().open(answer, model, texts, stream=stream)
        self._reader = AnswerReader(answer.reading)

    @property
    def parts(self) -> Sequence[Part]:
        """Those of the answer so far."""
        return self._reader.parts

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
    def result(self) -> Json:
        """The whole answer."""

    def first(self) -> Iterator[Json]:
        yield from self.begin()
        for job in self.answer.jobs:
            yield from self.take("" if job.echo is None else job.echo.text)

    def chunks(self, index: int, event: TextDelta) -> Iterator[Json]:
        logprobs = [*self._scored, *chat_logprobs(event.logprobs or (), self.texts)]  # they go with the first part
        found = [*self._reader.read(event.text, last=event.finish_reason is not None)]
        in_text = self._open is not None and self._open.kind == "text"
        for part in found or [""] * in_text:
            yield from self.take(part, logprobs)
            logprobs = []
        self._scored = [] if self._reader.in_call else logprobs
        self.finish_reason, self.stop_text = self._reader.reason(event), event.stop_text

    def last(self) -> Iterator[Json]:
        yield from self._close()
        yield from self.finish()

    def whole(self, texts: Sequence[Sequence[TextDelta]]) -> Json:
        deque(chain(self.first(), *(self.chunks(0, event) for event in texts[0]), self.last()), maxlen=0)
        return self.result() | figures(self.answer)

    def take(self, new: New, logprobs: Sequence[Json] = ()) -> Iterator[Json]:
        """The events of what is new of the answer."""
        if not new and not logprobs:
            return
        for part, text in self._reader.take(new):
            if part is not self._open:
                yield from self._close()
                self._open = part
                yield from self.start(part)
            else:
                scored = logprobs if part.kind == "text" else []
                part.logprobs += scored
                yield from self.grow(part, text, scored)

    def _close(self) -> Iterator[Json]:
        if self._open is not None:
            part, self._open = self._open, None
            yield from self.stop(part)

    def encoded(self, events: Iterable[Json]) -> bytes:
        """Events as they are sent: with their types as names."""
        return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), line(event)) for event in events)


def _chat_of(rest: Json, made: Json, others: dict[str, OtherField]) -> Json:
    """The body of a chat: what was made of the fields of another interface, and the rest of them. Raises an ApiError for a
    field that this server does not have and that changes something, or that is also made of others."""
    chat = {name: value for name, value in made.items() if value is not None}
    left = without_others(rest, _EVERYWHERE | others)
    if twice := next((name for name in left if name in chat), None):
        raise unsupported(twice, left[twice], "this route has another name for it")
    return chat | left


def form_of(form: Any) -> Any:
    """The form of an answer as chats have it: a schema is in an object of its own, and has a name."""
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {"name": "answer", **without(form, "type")}}


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
