"""Responses in OpenAI's shapes, whole and in chunks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar, final
from uuid import uuid4

from draftwood.core.token_logprobs import TokenLogprob
from draftwood.core.token_texts import TokenTexts
from draftwood.serve.answers import Answer
from draftwood.serve.echoes import Echo
from draftwood.serve.jobs import TextDelta
from draftwood.serve.logprobs import CompletionLogprobs, of_chat


class Shape(ABC):
    """The response to one request. All of its chunks have one id.

    Args:
        model: the name of the model.
        texts: the texts of single tokens.
        echoes: the prompts that come back, by choice; empty if none does.
        token_ids: choices have the ids of all new tokens, ``token_ids``.

    Attributes:
        id: of the response, and of its trace.
    """

    _prefix: ClassVar[str]
    _object: ClassVar[str]
    _chunk: ClassVar[str]

    def __init__(self, model: str, texts: TokenTexts, echoes: Sequence[Echo] = (), *, token_ids: bool = False) -> None:
        self._model = model
        self._texts = texts
        self._echoes = echoes
        self._token_ids = token_ids
        self.id = f"{self._prefix}-{uuid4().hex}"
        self._created = int(time.time())

    def whole(self, answer: Answer, written: list[list[TextDelta]]) -> dict[str, Any]:
        """A whole response, from the events of every choice."""
        choices = [self._choice(index, events) | self._ids(events) for index, events in enumerate(written)]
        return {**self._head(self._object, choices), "usage": answer.usage(), **figures(answer)}

    def first(self, index: int) -> dict[str, Any] | None:
        """The chunk before a choice's text, if there is one."""
        return None

    def chunks(self, index: int, event: TextDelta) -> list[dict[str, Any]]:
        """The chunks of one event: text, and the end."""
        shown = event.text or event.logprobs or (self._token_ids and event.tokens)
        found = [self._head(self._chunk, [self._part(index, event) | self._ids([event])])] if shown else []
        if event.finish_reason is not None:
            found.append(self._head(self._chunk, [self._end(index, event.finish_reason)]))
        return found

    def last(self, answer: Answer) -> dict[str, Any]:
        """The chunk of the usage."""
        return {**self._head(self._chunk, []), "usage": answer.usage(), **figures(answer)}

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "choices": choices}

    def _ids(self, events: list[TextDelta]) -> dict[str, Any]:
        return {"token_ids": [token for event in events for token in event.tokens]} if self._token_ids else {}

    @abstractmethod
    def _choice(self, index: int, events: list[TextDelta]) -> dict[str, Any]: ...

    @abstractmethod
    def _part(self, index: int, event: TextDelta) -> dict[str, Any]: ...

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

    def _choice(self, index: int, events: list[TextDelta]) -> dict[str, Any]:
        message = {"role": "assistant", "content": _text(events), "refusal": None}
        logprobs = self._logprobs(_logprobs(events))
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": events[-1].finish_reason}

    def _part(self, index: int, event: TextDelta) -> dict[str, Any]:
        return {**_delta(index, {"content": event.text}), "logprobs": self._logprobs(event.logprobs)}

    def _logprobs(self, entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        return None if entries is None else of_chat(entries, self._texts)

    def _end(self, index: int, reason: str) -> dict[str, Any]:
        return {**_delta(index, {}), "finish_reason": reason}


@final
class CompletionShape(Shape):
    """``/v1/completions``."""

    _prefix = "cmpl"
    _object = _chunk = "text_completion"

    def __init__(self, model: str, texts: TokenTexts, echoes: Sequence[Echo] = (), *, token_ids: bool = False) -> None:
        super().__init__(model, texts, echoes, token_ids=token_ids)
        self._logprobs = defaultdict[int, CompletionLogprobs](lambda: CompletionLogprobs(texts))  # by choice

    def first(self, index: int) -> dict[str, Any] | None:
        """The prompt, where it comes back."""
        if not self._echoes:
            return None
        return self._head(
            self._chunk, [self._made(index, self._echoes[index].text, self._echoes[index].logprobs, first=True)]
        )

    def _choice(self, index: int, events: list[TextDelta]) -> dict[str, Any]:
        text, entries, echo = _text(events), _logprobs(events), self._echoes[index] if self._echoes else None
        if echo is not None:
            text, entries = echo.text + text, None if entries is None else [*(echo.logprobs or ()), *entries]
        return {**self._made(index, text, entries, first=echo is not None), "finish_reason": events[-1].finish_reason}

    def _part(self, index: int, event: TextDelta) -> dict[str, Any]:
        return self._made(index, event.text, event.logprobs)

    def _made(self, index: int, text: str, entries: Sequence[TokenLogprob] | None, *, first: bool = False) -> dict[str, Any]:
        """A choice; with ``first`` its log-probabilities begin with the prompt's first token, which has none."""
        before = self._echoes[index].request.prompt[0] if first else None
        logprobs = None if entries is None else self._logprobs[index].part(entries, before)
        return {**_completion(index, text, None), "logprobs": logprobs}

    def _end(self, index: int, reason: str) -> dict[str, Any]:
        return _completion(index, "", reason)


def _text(events: list[TextDelta]) -> str:
    return "".join(event.text for event in events)


def _logprobs(events: list[TextDelta]) -> list[TokenLogprob] | None:
    """Those of all tokens; None where none are wanted."""
    if all(event.logprobs is None for event in events):
        return None
    return [one for event in events for one in event.logprobs or ()]


def figures(answer: Answer) -> dict[str, Any]:
    """What drafting brought to a response, and what of its request was ignored; empty if nothing was."""
    metrics = {"metrics": {"speculative_decoding": answer.drafts.to_json()}} if answer.drafts.accepted else {}
    return metrics | ({"warnings": list(answer.warnings)} if answer.warnings else {})


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _completion(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
