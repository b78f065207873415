"""OpenAI's Responses: ``/v1/responses``, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import time
from typing import Any, ClassVar, Final, Literal, final

from draftwood.serve.dialects.dialect import SHORTENING, Dialect, form_of, inside, without
from draftwood.serve.dialects.response_items import Tools, messages
from draftwood.serve.http.fields import Length, OtherField, Top
from draftwood.serve.openai.reading import Part
from draftwood.serve.openai.schemas import RouteBody, StreamOptions
from draftwood.serve.openai.shapes import figures
from draftwood.serve.openai.streams import Json
from draftwood.serve.openai.tagged import is_object

_STORED: Final = OtherField("this server stores nothing: send the whole conversation as input", ())
_OTHERS: Final = {
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), _STORED),
    **dict.fromkeys(("client_metadata", "context_management"), OtherField()),
    "background": OtherField("an answer is written while its client waits", (False,)),
    "max_tool_calls": OtherField(),  # it counts tools that a server runs
}
_PARTS: Final = {
    "reasoning": ("rs", "reasoning_text"),
    "text": ("msg", "output_text"),
    "call": ("fc", "function_call_arguments"),
}
_FUNCTION: Final = dict.fromkeys(("description", "parameters", "strict"))  # which a tool has, if only as null


class ResponsesBody(RouteBody):
    """``/v1/responses``. Its other fields are those of chats."""

    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: Length = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    top_logprobs: Top | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


@final
class Responses(Dialect):
    """A response and its events."""

    prefix = "resp_"
    others = _OTHERS
    names: ClassVar = {
        "messages": "input", "max_tokens": "max_output_tokens", "response_format": "text",
        "reasoning_effort": "reasoning.effort",
    }  # fmt: skip

    def __init__(self, body: ResponsesBody) -> None:
        self._body = body
        self._count = 0  # events
        self._tools, text = Tools(body.tools or []), body.text or {}
        remarks, self.truncates = self._tools.remarks, body.truncation == "auto"
        if (body.model_extra or {}).get("context_management"):
            remarks.append(SHORTENING)
        system = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
        logprobs = body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ())
        made = {
            "model": body.model,
            "messages": [*system, *messages(body.input, remarks)],
            "max_tokens": body.max_output_tokens,
            "tools": None if body.tools is None else self._tools.functions,
            "tool_choice": self._tools.choice(body.tool_choice),
            "response_format": form_of(text.get("format")),
            "verbosity": text.get("verbosity"),
            "reasoning_effort": (body.reasoning or {}).get("effort"),
            **inside("text", text, "format", "verbosity"),
            **inside("reasoning", body.reasoning, "effort", "summary", "generate_summary"),
            "logprobs": logprobs or None,
            "top_logprobs": body.top_logprobs,
        }
        super().__init__(made, body.model_extra, body.stream)
        self.remarks = tuple(dict.fromkeys(remarks))

    def begin(self) -> Iterable[Json]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def start(self, part: Part) -> Iterable[Json]:
        yield self._event("output_item.added", part, item=self._item(part, "in_progress"))
        if part.kind != "call":
            yield self._event("content_part.added", part, part=_content(part))

    def grow(self, part: Part, text: str, logprobs: Sequence[Json]) -> Iterable[Json]:
        extra = {"logprobs": list(logprobs)} if part.kind == "text" else {}
        if part.kind == "call" and self._tools.kind(part) != "function_call":
            return  # these come when they have ended
        yield self._event(f"{_PARTS[part.kind][1]}.delta", part, delta=text, **extra)

    def stop(self, part: Part) -> Iterable[Json]:
        name, kind = f"{_PARTS[part.kind][1]}.done", self._tools.kind(part)
        if kind == "custom_tool_call" and (text := self._tools.item(part)["input"]):
            yield self._event("custom_tool_call_input.delta", part, delta=text)
            yield self._event("custom_tool_call_input.done", part, input=text)
        elif kind == "function_call" and part.kind == "call" and self._state(part) == "completed":
            yield self._event(name, part, name=part.name, arguments=part.text)
        elif part.kind != "call":
            yield self._event(name, part, **without(_content(part), "type", "annotations"))
            yield self._event("content_part.done", part, part=_content(part))
        yield self._event("output_item.done", part, item=self._item(part, self._state(part)))

    def silence(self) -> Json:
        return self._event("in_progress", response=self._response("in_progress"))

    def finish(self) -> Iterable[Json]:
        yield self._event(self._status, response=self.result() | figures(self.answer))

    def result(self) -> Json:
        used = self.answer.usage()
        usage = {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": {**used["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": used.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
            },
            "total_tokens": used["total_tokens"],
        }
        output = [self._item(part, self._state(part)) for part in self.parts]
        return self._response(self._status) | {"output": output, "usage": usage}

    def fail(self, error: Json) -> Json:
        known = {"code": "server_error", "message": error["error"]["message"]}
        return self._event("failed", response=self._response("failed") | {"error": known})

    @property
    def _status(self) -> str:
        return "incomplete" if self.finish_reason == "length" else "completed"

    def _state(self, part: Part) -> str:
        """The status of a part that has ended: a call may have been cut in its arguments, and the last part by the limit."""
        cut = self.finish_reason == "length" and part is self.parts[-1]
        return "incomplete" if (cut if part.kind != "call" else not is_object(part.text)) else "completed"

    def _event(self, kind: str, whose: Part | None = None, /, **fields: Any) -> Json:
        where: Json = {} if whose is None else {"output_index": whose.index}
        if whose is not None and "item" not in fields:
            where |= {"item_id": self._id(whose)} | ({} if whose.kind == "call" else {"content_index": 0})
        self._count += 1
        return {"type": f"response.{kind}", "sequence_number": self._count - 1, **where, **fields}

    def _id(self, part: Part) -> str:
        return f"{_PARTS[part.kind][0]}_{self.id.removeprefix(self.prefix)}_{part.index}"

    def _item(self, part: Part, status: str) -> Json:
        head, content = {"id": self._id(part), "status": status}, [] if status == "in_progress" else [_content(part)]
        if part.kind == "call":
            return {**head, **self._tools.item(part)}
        if part.kind == "reasoning":
            return {**head, "type": "reasoning", "summary": [], "content": content}
        return {**head, "type": "message", "role": "assistant", "content": content}

    def _response(self, status: str) -> Json:
        """The response without its output."""
        body, sent, used = self._body, self._body.model_extra or {}, self.answer.jobs[0].sampling
        return {
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": None,
            "completed_at": int(time()) if status == "completed" else None, "background": False,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions, "model": self.model, "output": [],
            "max_output_tokens": body.max_output_tokens, "metadata": sent.get("metadata") or {},
            "parallel_tool_calls": sent.get("parallel_tool_calls") is not False, "previous_response_id": None,
            "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None}, "store": False,
            "temperature": used.temperature, "top_p": used.top_p, "presence_penalty": used.presence_penalty,
            "frequency_penalty": used.frequency_penalty, "top_logprobs": body.top_logprobs or 0, "service_tier": "default",
            "text": {"format": (body.text or {}).get("format") or {"type": "text"}}, "usage": None,
            "truncation": body.truncation or "disabled", "tool_choice": body.tool_choice or "auto",
            "tools": [_FUNCTION | tool if tool.get("type") == "function" else tool for tool in body.tools or []],
            **{name: sent.get(name) for name in ("safety_identifier", "prompt_cache_key", "max_tool_calls")},
        }  # fmt: skip


def _content(part: Part) -> Json:
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": part.logprobs}
