"""Responses in OpenAI's shapes, whole and in chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import ClassVar, final

from draftwood.core.token_logprobs import TokenLogprob
from draftwood.core.token_texts import LOWEST, TokenTexts
from draftwood.serve.decoding.jobs import TextDelta, drafting_figures
from draftwood.serve.openai.answers import Answer
from draftwood.serve.openai.message import AnswerReader
from draftwood.serve.openai.schemas import Settings, StreamOptions
from draftwood.serve.openai.streams import DONE, Json, Shape


class _OpenAIShape(Shape, ABC):
    """An answer in OpenAI's shape, whole and in chunks.

    Args:
        body: of the request.
    """

    closing = DONE
    _object: ClassVar[str]
    _chunk: ClassVar[str]
    _nothing: ClassVar[Json]  # of a choice that ends

    def __init__(self, body: Settings) -> None:
        options = body.stream_options or StreamOptions()
        self._usage, self._counts = bool(options.include_usage), bool(options.continuous_usage_stats)
        self._token_ids = bool(body.return_token_ids)

    def whole(self, texts: Sequence[Sequence[TextDelta]]) -> Json:
        choices = [
            {**self._choice(index, text), **self._reason(index, text), **self._ids(text)}
            for index, text in enumerate(map(TextDelta.joined, texts))
        ]
        return {**self._head(self._object, choices), "usage": self.answer.usage(), **figures(self.answer)}

    def chunks(self, index: int, event: TextDelta) -> list[Json]:
        known = bool(event.logprobs) or (self._token_ids and bool(event.tokens))
        found = self._parts(index, event, empty=known)
        if found:
            found[0] |= self._ids(event)
        if event.finish_reason is not None:
            found.append({"index": index, **self._nothing, "logprobs": None, **self._reason(index, event)})
        made = [self._chunked(choice) for choice in found]
        if not self.answer.left and not self._usage:
            made[-1] |= figures(self.answer)
        return made

    def silence(self) -> Json:
        return self._chunked(*self._parts(0, TextDelta(tokens=(), text="", finish_reason=None), empty=True))

    def last(self) -> list[Json]:
        return [{**self._chunked(), "usage": self.answer.usage(), **figures(self.answer)}] if self._usage else []

    def fail(self, error: Json) -> Json:
        return error

    def _chunked(self, *choices: Json) -> Json:
        usage = {"usage": self.answer.usage() if self._counts else None} if self._usage or self._counts else {}
        return {**usage, **self._head(self._chunk, choices)}

    def _head(self, kind: str, choices: Sequence[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _ids(self, text: TextDelta) -> Json:
        return {"token_ids": list(text.tokens)} if self._token_ids else {}

    @abstractmethod
    def _choice(self, index: int, text: TextDelta) -> Json:
        """A choice with its whole text."""

    @abstractmethod
    def _parts(self, index: int, event: TextDelta, *, empty: bool) -> list[Json]:
        """The choices with the parts of an event's text; with ``empty`` one at least."""

    def _reason(self, index: int, text: TextDelta) -> Json:
        """Why a text ended: with the stop text, if it was one."""
        stop = {} if text.stop_text is None else {"stop_reason": text.stop_text}
        return {"finish_reason": text.finish_reason, **stop}


@final
class ChatShape(_OpenAIShape):
    """``/v1/chat/completions``."""

    prefix = "chatcmpl-"
    _object = "chat.completion"
    _chunk = "chat.completion.chunk"
    _nothing: ClassVar = {"delta": {}}

    def open(self, answer: Answer, model: str, texts: TokenTexts, *, stream: bool) -> None:
        super().open(answer, model, texts, stream=stream)
        self._readers = [AnswerReader(answer.reading) for _ in answer.jobs]

    def first(self) -> list[Json]:
        begin = {"role": "assistant", "content": ""}
        return [self._chunked(self._said(index, None, delta=begin)) for index in range(len(self._readers))]

    def _choice(self, index: int, text: TextDelta) -> Json:
        self._readers[index].push(text.text, last=True)
        return self._said(index, text, message=self._readers[index].message())

    def _parts(self, index: int, event: TextDelta, *, empty: bool) -> list[Json]:
        deltas = self._readers[index].push(event.text, last=event.finish_reason is not None)
        if empty and not deltas:
            deltas = [{"content": ""}]
        return [self._said(index, None if place else event, delta=delta) for place, delta in enumerate(deltas)]

    def _reason(self, index: int, text: TextDelta) -> Json:
        return super()._reason(index, text) | {"finish_reason": self._readers[index].reason(text)}

    def _said(self, index: int, text: TextDelta | None, **said: Json) -> Json:
        entries = None if text is None else text.logprobs
        logprobs = None if entries is None else {"content": chat_logprobs(entries, self.texts), "refusal": None}
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": None}


@final
class CompletionShape(_OpenAIShape):
    """``/v1/completions``."""

    prefix = "cmpl-"
    _object = _chunk = "text_completion"
    _nothing: ClassVar = {"text": ""}

    def open(self, answer: Answer, model: str, texts: TokenTexts, *, stream: bool) -> None:
        super().open(answer, model, texts, stream=stream)
        self._logprobs = [_CompletionLogprobs(texts) for _ in answer.jobs]

    def first(self) -> list[Json]:
        """The prompts, where they come back."""
        echoes = [(index, job.echo) for index, job in enumerate(self.answer.jobs) if job.echo is not None]
        return [self._chunked(self._said(*echo, first=True)) for echo in echoes]

    def _choice(self, index: int, text: TextDelta) -> Json:
        if (echo := self.answer.jobs[index].echo) is None:
            return self._said(index, text)
        return self._said(index, TextDelta.joined([echo, text]), first=True)

    def _parts(self, index: int, event: TextDelta, *, empty: bool) -> list[Json]:
        return [self._said(index, event)] if event.text or empty else []

    def _said(self, index: int, text: TextDelta, *, first: bool = False) -> Json:
        """A choice; with ``first`` its log-probabilities begin with the prompt's first token, which has none."""
        before = self.answer.jobs[index].request.prompt[0] if first else None
        logprobs = None if text.logprobs is None else self._logprobs[index].part(text.logprobs, before)
        return {"index": index, "text": text.text, "logprobs": logprobs, "finish_reason": None}


def figures(answer: Answer) -> Json:
    """What drafting brought to a response, and what of its request was ignored; empty if nothing was."""
    metrics = {"metrics": {"speculative_decoding": drafting_figures(answer.drafts)}} if answer.drafts else {}
    return metrics | ({"warnings": list(answer.warnings)} if answer.warnings else {})


def chat_logprobs(entries: Sequence[TokenLogprob], texts: TokenTexts) -> list[Json]:
    """The log-probabilities of a chat's answer, or of a part of one."""

    def one(token: int, logprob: float) -> Json:
        text, data = texts.text_of(token), list(texts.bytes_of(token))
        return {"token": text, "logprob": max(logprob, LOWEST), "bytes": data}

    return [{**one(e.token, e.logprob), "top_logprobs": [one(*each) for each in e.top]} for e in entries]


@final
class _CompletionLogprobs:
    """The log-probabilities of a completion, part by part: offsets count on. A token that is no whole characters is named
    by its bytes, as in ``bytes:\\xf0\\x9f``."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # characters of the text so far

    def part(self, entries: Sequence[TokenLogprob], first: int | None = None) -> Json:
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
