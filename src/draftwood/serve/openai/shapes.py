"""Responses in OpenAI's shapes, whole and in chunks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, final
from uuid import uuid4

from draftwood.core.token_logprobs import TokenLogprob
from draftwood.core.token_texts import LOWEST, TokenTexts
from draftwood.serve.decoding.jobs import TextDelta, drafting_figures
from draftwood.serve.openai.answers import Answer
from draftwood.serve.openai.message import AnswerReader
from draftwood.serve.openai.prepare import Prepared


class Shape(ABC):
    """The response to one request. All of its chunks have one id, which is that of its trace too."""

    _prefix: ClassVar[str]
    _object: ClassVar[str]
    _chunk: ClassVar[str]
    _nothing: ClassVar[dict[str, Any]]  # of a choice that ends

    def __init__(self, model: str, texts: TokenTexts, prepared: Prepared, *, token_ids: bool = False) -> None:
        self._model = model
        self._texts = texts
        self._prepared = prepared
        self._token_ids = token_ids
        self.id = f"{self._prefix}-{uuid4().hex}"
        self._created = int(time.time())

    def whole(self, answer: Answer, texts: Sequence[TextDelta]) -> dict[str, Any]:
        """A whole response, from the whole text of every choice."""
        choices = [
            {**self._choice(index, text), **self._reason(index, text), **self._ids(text)} for index, text in enumerate(texts)
        ]
        return {**self._head(self._object, choices), "usage": answer.usage(), **figures(answer)}

    @abstractmethod
    def first(self, index: int) -> dict[str, Any] | None:
        """The chunk before a choice's text, if there is one."""

    def chunks(self, index: int, event: TextDelta) -> list[dict[str, Any]]:
        """The chunks of one event: text, and the end."""
        known = bool(event.logprobs) or (self._token_ids and bool(event.tokens))
        found = self._parts(index, event, empty=known)
        if found:
            found[0] |= self._ids(event)
        if event.finish_reason is not None:
            found.append({"index": index, **self._nothing, "logprobs": None, **self._reason(index, event)})
        return [self._head(self._chunk, [choice]) for choice in found]

    def silence(self) -> dict[str, Any]:
        """A chunk without text."""
        return self._head(self._chunk, self._parts(0, TextDelta(tokens=(), text="", finish_reason=None), empty=True))

    def last(self, answer: Answer) -> dict[str, Any]:
        """The chunk of the usage."""
        return {**self._head(self._chunk, []), "usage": answer.usage(), **figures(answer)}

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "choices": choices}

    def _ids(self, text: TextDelta) -> dict[str, Any]:
        return {"token_ids": list(text.tokens)} if self._token_ids else {}

    @abstractmethod
    def _choice(self, index: int, text: TextDelta) -> dict[str, Any]:
        """A choice with its whole text."""

    @abstractmethod
    def _parts(self, index: int, event: TextDelta, *, empty: bool) -> list[dict[str, Any]]:
        """The choices with the parts of an event's text; with ``empty`` one at least."""

    def _reason(self, index: int, text: TextDelta) -> dict[str, Any]:
        """Why a text ended: with the stop text, if it was one."""
        stop = {} if text.stop_text is None else {"stop_reason": text.stop_text}
        return {"finish_reason": text.finish_reason, **stop}


@final
class ChatShape(Shape):
    """``/v1/chat/completions``."""

    _prefix = "chatcmpl"
    _object = "chat.completion"
    _chunk = "chat.completion.chunk"
    _nothing: ClassVar = {"delta": {}}

    @cached_property
    def _readers(self) -> list[AnswerReader]:
        return [AnswerReader(self._prepared.reading) for _ in self._prepared.requests]

    def first(self, index: int) -> dict[str, Any]:
        return self._head(self._chunk, [self._said(index, None, delta={"role": "assistant", "content": ""})])

    def _choice(self, index: int, text: TextDelta) -> dict[str, Any]:
        self._readers[index].push(text.text, last=True)
        return self._said(index, text, message=self._readers[index].message())

    def _parts(self, index: int, event: TextDelta, *, empty: bool) -> list[dict[str, Any]]:
        deltas = self._readers[index].push(event.text, last=event.finish_reason is not None)
        if empty and not deltas:
            deltas = [{"content": ""}]
        return [self._said(index, None if place else event, delta=delta) for place, delta in enumerate(deltas)]

    def _reason(self, index: int, text: TextDelta) -> dict[str, Any]:
        found = super()._reason(index, text)
        called = found["finish_reason"] == "stop" and self._readers[index].called
        return {**found, "finish_reason": "tool_calls"} if called else found

    def _said(self, index: int, text: TextDelta | None, **said: dict[str, Any]) -> dict[str, Any]:
        entries = None if text is None else text.logprobs
        logprobs = None if entries is None else _of_chat(entries, self._texts)
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": None}


@final
class CompletionShape(Shape):
    """``/v1/completions``."""

    _prefix = "cmpl"
    _object = _chunk = "text_completion"
    _nothing: ClassVar = {"text": ""}

    @cached_property
    def _logprobs(self) -> list[_CompletionLogprobs]:
        return [_CompletionLogprobs(self._texts) for _ in self._prepared.requests]

    def first(self, index: int) -> dict[str, Any] | None:
        """The prompt, where it comes back."""
        if not self._prepared.echoes:
            return None
        return self._head(self._chunk, [self._said(index, self._prepared.echoes[index], first=True)])

    def _choice(self, index: int, text: TextDelta) -> dict[str, Any]:
        if not self._prepared.echoes:
            return self._said(index, text)
        return self._said(index, TextDelta.joined([self._prepared.echoes[index], text]), first=True)

    def _parts(self, index: int, event: TextDelta, *, empty: bool) -> list[dict[str, Any]]:
        return [self._said(index, event)] if event.text or empty else []

    def _said(self, index: int, text: TextDelta, *, first: bool = False) -> dict[str, Any]:
        """A choice; with ``first`` its log-probabilities begin with the prompt's first token, which has none."""
        before = self._prepared.requests[index].prompt[0] if first else None
        logprobs = None if text.logprobs is None else self._logprobs[index].part(text.logprobs, before)
        return {"index": index, "text": text.text, "logprobs": logprobs, "finish_reason": None}


def figures(answer: Answer) -> dict[str, Any]:
    """What drafting brought to a response, and what of its request was ignored; empty if nothing was."""
    metrics = {"metrics": {"speculative_decoding": drafting_figures(answer.drafts)}} if answer.drafts else {}
    return metrics | ({"warnings": list(warnings)} if (warnings := answer.prepared.warnings) else {})


def _of_chat(entries: Sequence[TokenLogprob], texts: TokenTexts) -> dict[str, Any]:
    """The log-probabilities of an answer, or of a part of one."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        text, data = texts.text_of(token), list(texts.bytes_of(token))
        return {"token": text, "logprob": max(logprob, LOWEST), "bytes": data}

    content = [{**one(e.token, e.logprob), "top_logprobs": [one(*each) for each in e.top]} for e in entries]
    return {"content": content, "refusal": None}


@final
class _CompletionLogprobs:
    """The log-probabilities of a completion, part by part: offsets count on. A token that is no whole characters is named
    by its bytes, as in ``bytes:\\xf0\\x9f``."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # characters of the text so far

    def part(self, entries: Sequence[TokenLogprob], first: int | None = None) -> dict[str, Any]:
        """The log-probabilities of the next tokens; ``first`` is a token before them that has none."""
        tokens = [*([] if first is None else [first]), *(entry.token for entry in entries)]
        unknown = [] if first is None else [None]
        return {
            "tokens": [self._texts.escaped(token) for token in tokens],
            "token_logprobs": [*unknown, *(max(entry.logprob, LOWEST) for entry in entries)],
            "top_logprobs": [*unknown, *map(self._top, entries)],
            "text_offset": [self._begins(token) for token in tokens],
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        """The likeliest tokens and the token itself, by text. Of tokens with the same text the likeliest counts."""
        if not entry.top:
            return None
        found: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            found.setdefault(self._texts.escaped(token), max(logprob, LOWEST))
        return found

    def _begins(self, token: int) -> int:
        """Where a token begins in the text, in characters. Special tokens are not part of the text."""
        begin = self._offset
        if not self._texts.is_special(token):
            self._offset += len(self._decoder.decode(self._texts.bytes_of(token)))
        return begin
