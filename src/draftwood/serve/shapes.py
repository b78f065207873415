"""Responses in OpenAI's shapes, whole and in chunks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, final
from uuid import uuid4

from draftwood.serve.answers import Answer
from draftwood.serve.jobs import Written


class Shape(ABC):
    """The response to one request. All of its chunks have one id.

    Args:
        model: the name of the model.

    Attributes:
        id: of the response, and of its trace.
    """

    _prefix: ClassVar[str]
    _object: ClassVar[str]
    _chunk: ClassVar[str]

    def __init__(self, model: str) -> None:
        self._model = model
        self.id = f"{self._prefix}-{uuid4().hex}"
        self._created = int(time.time())

    def whole(self, answer: Answer, written: list[list[Written]]) -> dict[str, Any]:
        """A whole response, from the events of every choice."""
        choices = [self._choice(index, events) for index, events in enumerate(written)]
        return {**self._head(self._object, choices), "usage": answer.usage(), **figures(answer)}

    def first(self, index: int) -> dict[str, Any] | None:
        """The chunk before a choice's text, if there is one."""
        return None

    def chunks(self, index: int, event: Written) -> list[dict[str, Any]]:
        """The chunks of one event: text, and the end."""
        found = [self._head(self._chunk, [self._part(index, event)])] if event.text else []
        if event.finish_reason is not None:
            found.append(self._head(self._chunk, [self._end(index, event.finish_reason)]))
        return found

    def last(self, answer: Answer) -> dict[str, Any]:
        """The chunk of the usage."""
        return {**self._head(self._chunk, []), "usage": answer.usage(), **figures(answer)}

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "choices": choices}

    @abstractmethod
    def _choice(self, index: int, events: list[Written]) -> dict[str, Any]: ...

    @abstractmethod
    def _part(self, index: int, event: Written) -> dict[str, Any]: ...

    @abstractmethod
    def _end(self, index: int, reason: str) -> dict[str, Any]: ...


@final
class ChatShape(Shape):
    """``/v1/chat/completions``."""

    _prefix = "chatcmpl"
    _object = "chat.completion"
    _chunk = "chat.completion.chunk"

    def first(self, index: int) -> dict[str, Any]:
        return self._head(self._chunk, [_delta(index, {"role": "assistant", "content": ""})])

    def _choice(self, index: int, events: list[Written]) -> dict[str, Any]:
        message = {"role": "assistant", "content": _text(events), "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": events[-1].finish_reason}

    def _part(self, index: int, event: Written) -> dict[str, Any]:
        return _delta(index, {"content": event.text})

    def _end(self, index: int, reason: str) -> dict[str, Any]:
        return {**_delta(index, {}), "finish_reason": reason}


@final
class CompletionShape(Shape):
    """``/v1/completions``."""

    _prefix = "cmpl"
    _object = _chunk = "text_completion"

    def _choice(self, index: int, events: list[Written]) -> dict[str, Any]:
        return _completion(index, _text(events), events[-1].finish_reason)

    def _part(self, index: int, event: Written) -> dict[str, Any]:
        return _completion(index, event.text, None)

    def _end(self, index: int, reason: str) -> dict[str, Any]:
        return _completion(index, "", reason)


def _text(events: list[Written]) -> str:
    return "".join(event.text for event in events)


def figures(answer: Answer) -> dict[str, Any]:
    """What drafting brought to a response; empty if nothing was drafted."""
    return {"metrics": {"speculative_decoding": answer.drafts.to_json()}} if answer.drafts.accepted else {}


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _completion(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
