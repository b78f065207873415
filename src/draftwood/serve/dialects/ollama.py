"""Ollama's interface: ``/api/chat`` and ``/api/generate``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Annotated, Any, ClassVar, Final, final

from pydantic import AfterValidator, Field

from draftwood.serve.dialects.dialect import CHATS, Dialect, objects
from draftwood.serve.http.errors import in_ollama
from draftwood.serve.http.fields import NO_LIMIT, OtherField, Top, unsupported
from draftwood.serve.http.settings import seconds_of
from draftwood.serve.openai.message import called
from draftwood.serve.openai.reading import Part
from draftwood.serve.openai.schemas import RouteBody
from draftwood.serve.openai.shapes import figures
from draftwood.serve.openai.streams import Json, line

_MACHINE: Final = frozenset(  # options of how a model is computed, which change no text
    {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram", "f16_kv", "logits_all"}
    | {"vocab_only", "use_mmap", "use_mlock"}
)
_OTHERS: Final = {
    "template": OtherField("the model's own chat template is used", ("",)),
    "context": OtherField("a conversation is sent as messages", ([],)),
    "repeat_penalty": OtherField("a penalty here counts the whole text: send repeat_last_n -1 too", (1,)),
}


def _checked(value: float | str | None) -> float | str | None:
    if value is not None:
        seconds_of(value)
    return value


KeepAlive = Annotated[int | float | str | None, AfterValidator(_checked)]


class OllamaBody(RouteBody):
    """Fields of both routes. Other ones, and options, are those of chats."""

    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    stream: bool | None = None
    keep_alive: KeepAlive = None

    @property
    def empty(self) -> bool:
        """Whether it wants no text."""
        return not any(getattr(self, name, None) for name in ("messages", "prompt", "suffix", "images"))

    @property
    def kept(self) -> float | None:
        """Seconds that the model stays after it; None changes nothing."""
        return None if self.keep_alive is None else seconds_of(self.keep_alive)

    @property
    def unloads(self) -> bool:
        """Whether it wants nothing but that the model goes."""
        return self.empty and self.kept == 0


class OllamaChatBody(OllamaBody):
    """``/api/chat``."""

    messages: list[Any] = Field(default_factory=list)


class OllamaGenerateBody(OllamaBody):
    """``/api/generate``."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    images: list[Any] | None = None
    raw: bool | None = None


@final
class Ollama(Dialect):
    """An answer; a stream of it has a line of JSON for each event.

    Args:
        body: of the request.
        chats: whether the model has a chat template. Without one, and with ``raw``, a prompt is continued as it is.
        waited: nanoseconds until the model was there.
    """

    prefix = "ollama-"
    others = _OTHERS
    names: ClassVar = {"max_tokens": "num_predict", "reasoning_effort": "think"}
    whole_calls = True
    media_type = "application/x-ndjson"

    def __init__(self, body: OllamaChatBody | OllamaGenerateBody, chats: bool = True, waited: int = 0) -> None:
        self._arrived, self._waited = perf_counter_ns(), waited
        self._generates = isinstance(body, OllamaGenerateBody)
        self._body = body
        think, path = body.think, CHATS
        scored: Json = {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
        if isinstance(body, OllamaChatBody):
            made: Json = {"messages": list(_messages(objects("messages", body.messages)))}
        elif chats and not body.raw and not body.suffix:
            system = [] if body.system is None else [{"role": "system", "content": body.system}]
            made = {"messages": [*system, {"role": "user", "content": _content(body.prompt, body.images)}]}
        else:
            made, path, think, scored = _continued(body), "/v1/completions", None, {}
        made |= {
            **scored,
            "model": body.model,
            "response_format": _form(body.format),
            "chat_template_kwargs": {"enable_thinking": think} if isinstance(think, bool) else None,
            "reasoning_effort": think if isinstance(think, str) else None,
        }
        super().__init__(made, {**(body.model_extra or {}), **_options(body.options)}, body.stream is not False, path)

    def without_text(self, model: str) -> Json:
        """The whole answer of a request that wants no text."""
        self.model = model
        return self._line(self._say(""), done=True) | {"done_reason": "unload" if self._body.unloads else "load"}

    def grow(self, part: Part, text: str, logprobs: Sequence[Json]) -> Iterable[Json]:
        if part.kind != "call":
            said = self._say(text) if part.kind == "text" else self._say("", thinking=text)
            yield self._line(said, done=False) | ({"logprobs": list(logprobs)} if logprobs else {})

    def stop(self, part: Part) -> Iterable[Json]:
        if part.kind == "call":
            yield self._line(self._say("", tool_calls=[_call(part)]), done=False)

    def finish(self) -> Iterable[Json]:
        yield self._line(self._say(""), done=True) | self._end() | figures(self.answer)

    def result(self) -> Json:
        text, thought = self._reader.text("text"), self._reader.text("reasoning")
        calls = [_call(part) for part in self.parts if part.kind == "call"]
        extra = ({"thinking": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})
        logprobs = [entry for part in self.parts for entry in part.logprobs]
        return self._line(self._say(text, **extra), done=True) | ({"logprobs": logprobs} if logprobs else {}) | self._end()

    def fail(self, error: Json) -> Json:
        return in_ollama(error)

    def silence(self) -> Json:
        return {**self._say(""), "done": False}  # JSON has no comments

    def encoded(self, events: Iterable[Json]) -> bytes:
        return b"".join(line(event) + b"\n" for event in events)

    def _say(self, text: str, **extra: Any) -> Json:
        if self._generates:
            return {"response": text, **extra}
        return {"message": {"role": "assistant", "content": text, **extra}}

    def _line(self, said: Json, *, done: bool) -> Json:
        return {"model": self.model, "created_at": as_time(datetime.now(UTC)), **said, "done": done}

    def _end(self) -> Json:
        """The reason of the end, tokens, and times in nanoseconds. None is 0 that clients divide by, and they add up."""
        used, read = self.answer.usage(), self.answer.began or perf_counter_ns()
        end = max(perf_counter_ns(), read + 1)
        return {
            "done_reason": "length" if self.finish_reason == "length" else "stop",
            "total_duration": self._waited + end - self._arrived, "load_duration": self._waited,
            "prompt_eval_count": used["prompt_tokens"], "prompt_eval_duration": read - self._arrived,
            "eval_count": used["completion_tokens"], "eval_duration": end - read,
        }  # fmt: skip


def _continued(body: OllamaGenerateBody) -> Json:
    """The fields of a completion."""
    for name in ("system", "images", "think"):
        if value := getattr(body, name):
            raise unsupported(name, value, "this prompt is continued as it is, without a chat template")
    if body.top_logprobs and not body.logprobs:
        raise unsupported("top_logprobs", body.top_logprobs, "it belongs to logprobs: send both, or neither")
    top = body.top_logprobs or 0 if body.logprobs else None
    limit = {"max_tokens": NO_LIMIT} if (body.options or {}).get("num_predict") is None else {}
    return {"prompt": body.prompt, "suffix": body.suffix, "logprobs": top, **limit}


def as_time(time: datetime) -> str:
    """A time of UTC as Ollama writes it."""
    return time.isoformat().replace("+00:00", "Z")


def _options(options: Json | None) -> Json:
    """Options as fields of a chat. A negative number of tokens fills the context. Ollama's repeat penalty counts the last
    64 tokens; with ``repeat_last_n`` -1 it counts all, as here."""
    made = {name: value for name, value in (options or {}).items() if name not in _MACHINE}
    if (most := made.pop("num_predict", None)) is not None:
        made["max_tokens"] = NO_LIMIT if isinstance(most, int | float) and most < 0 else most
    if made.get("repeat_last_n") == -1 and "repeat_penalty" in made and "repetition_penalty" not in made:
        made["repetition_penalty"] = made.pop("repeat_penalty")
        del made["repeat_last_n"]
    return made


def _form(form: str | Json | None) -> Json | None:
    if isinstance(form, dict):
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}
    if form not in ("json", "", None):
        raise unsupported("format", form, "a format is json, or a JSON schema")
    return {"type": "json_object"} if form else None


def _messages(messages: Sequence[Json]) -> Iterator[Json]:
    """Messages of a chat. Calls may have no ids here: a result is of the next one of its name, or of the next."""
    names = {"thinking": "reasoning_content", "tool_name": "name"}
    waiting: list[Json] = []
    for number, message in enumerate(messages):
        made = {names.get(name, name): value for name, value in message.items() if name != "images"}
        made["content"] = _content(message.get("content"), message.get("images"))
        if message.get("tool_calls"):
            calls = objects("messages", message["tool_calls"])
            said = objects("messages", [call.get("function") for call in calls])
            made["tool_calls"] = [
                called(call.get("id") or f"call_{number}_{i}", function.get("name"), function.get("arguments") or {})
                for i, (call, function) in enumerate(zip(calls, said, strict=True))
            ]
            waiting = list(made["tool_calls"])
        if message.get("role") == "tool" and waiting:
            own = next((i for i, call in enumerate(waiting) if call["function"]["name"] == made.get("name")), 0)
            made.setdefault("tool_call_id", waiting.pop(own)["id"])
        yield made


def _content(text: Any, images: Any) -> Any:
    """A content as a chat has it. An image is refused there."""
    return [{"type": "text", "text": text or ""}, {"type": "image"}] if images else text


def _call(part: Part) -> Json:
    return {"id": part.id, "function": {"name": part.name, "arguments": json.loads(part.text)}}
