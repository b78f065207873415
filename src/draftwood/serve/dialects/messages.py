"""Anthropic's Messages: ``/v1/messages``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, final

from draftwood.serve.dialects.dialect import Dialect, Json, Part, inside, objects, without
from draftwood.serve.errors import in_anthropic
from draftwood.serve.other_fields import OtherField, unsupported
from draftwood.serve.reading import called
from draftwood.serve.schemas import RouteBody

_OTHERS: Final = {
    "container": OtherField("this server runs no code", ()),
    "mcp_servers": OtherField("this server runs no tools", ([],)),
    "context_management": OtherField("prompts are read as a whole: shorten it", ({},)),
    **dict.fromkeys(("cache_control", "inference_geo", "speed"), OtherField()),  # how and where a text is written
}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS: Final = {"text": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking"),
                  "call": ("input_json_delta", "partial_json")}  # fmt: skip


class CountBody(RouteBody):
    """``/v1/messages/count_tokens``."""

    messages: list[Any]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesBody(CountBody):
    """``/v1/messages``. Its other fields are those of chats."""

    stop_sequences: list[str] | None = None
    stream: bool | None = None


@final
class Messages(Dialect):
    """A message and its events."""

    prefix = "msg_"
    others = _OTHERS
    whole_calls = True

    def __init__(self, body: CountBody) -> None:
        self._stops, stream = (body.stop_sequences, body.stream) if isinstance(body, MessagesBody) else (None, None)
        turns, choice, config = objects("messages", body.messages), body.tool_choice or {}, body.output_config or {}
        system = [] if body.system is None else [{"role": "system", "content": _content("system", body.system)}]
        made = {
            "model": body.model,
            "messages": [*system, *(message for turn in turns for message in _turn(turn))],
            "continue_final_message": True if turns and turns[-1].get("role") == "assistant" else None,
            "stop": self._stops,
            "tools": None if body.tools is None else [_tool(tool) for tool in objects("tools", body.tools)],
            "tool_choice": _tool_choice(choice) if choice else None,
            "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
            "chat_template_kwargs": None if body.thinking is None else _template(body.thinking),
            "reasoning_effort": config.get("effort"),
            "response_format": _form(config.get("format")),
            **inside("output_config", config, "effort", "format"),
            **inside("tool_choice", choice, "type", "name", "disable_parallel_tool_use"),
            **inside("thinking", body.thinking, "type", "display", "budget_tokens"),
        }
        super().__init__(made, body.model_extra, stream)

    def begin(self) -> Iterable[Json]:
        yield {"type": "message_start", "message": self._message([])}

    def start(self, part: Part) -> Iterable[Json]:
        yield {"type": "content_block_start", "index": part.index, "content_block": _block(part)}

    def grow(self, part: Part, text: str, logprobs: Sequence[Json]) -> Iterable[Json]:
        kind, name = _DELTAS[part.kind]
        yield {"type": "content_block_delta", "index": part.index, "delta": {"type": kind, name: text}}

    def stop(self, part: Part) -> Iterable[Json]:
        yield {"type": "content_block_stop", "index": part.index}

    def finish(self) -> Iterable[Json]:
        yield {"type": "message_delta", "delta": self._end(), "usage": _usage(self.usage), **self.figures}
        yield {"type": "message_stop"}

    def answer(self) -> Json:
        return self._message([_block(part) for part in self.parts]) | self._end()

    def fail(self, error: Json) -> Iterable[Json]:
        yield in_anthropic(error, 500)

    def _end(self) -> Json:
        if self.finish_reason == "stop" and self.stop_text in (self._stops or ()):
            return {"stop_reason": "stop_sequence", "stop_sequence": self.stop_text}
        return {"stop_reason": _REASONS.get(self.finish_reason or "", "end_turn"), "stop_sequence": None}

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.head["id"], "type": "message", "role": "assistant", "model": self.head["model"], "content": content,
            "stop_reason": None, "stop_sequence": None, "usage": _usage(self.usage),
        }  # fmt: skip


def _turn(turn: Json) -> Iterator[Json]:
    """A message as messages of a chat. Results of tools come before its text, as chats want them."""
    blocks: dict[str, list[Json]] = {"tool_result": [], "tool_use": [], "thinking": [], "said": []}
    content = turn.get("content")
    for block in objects("messages", content) if isinstance(content, list) else ():
        blocks.get(str(block.get("type")), blocks["said"]).append(block)
    for block in blocks["tool_result"]:
        said = _content("messages", block.get("content", ""))
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said}
    if blocks["tool_result"] and not blocks["said"]:
        return
    message = {**turn, "content": _content("messages", blocks["said"]) if isinstance(content, list) else content}
    if blocks["tool_use"]:
        calls = [called(block.get("id"), block.get("name"), block.get("input") or {}) for block in blocks["tool_use"]]
        message["tool_calls"] = calls
    if thought := "".join(str(block.get("thinking") or "") for block in blocks["thinking"]):
        message["reasoning_content"] = thought
    yield message


def _content(name: str, content: Any) -> Any:
    """A content as a chat has it. A part that is no text is refused there, for its type."""
    if not isinstance(content, list):
        return content
    return [without(part, "cache_control", "citations") if part.get("type") == "text" else {"type": part.get("type")}
            for part in objects(name, content)]  # fmt: skip


def _tool(tool: Json) -> Json:
    if tool.get("type") not in ("custom", None):
        why = "this server runs no tools: send tools with an input_schema, which your program runs"
        raise unsupported("tools", tool, why)
    rest = without(tool, "type", "cache_control", "input_schema", "eager_input_streaming")
    return {"type": "function", "function": {**rest, "parameters": tool.get("input_schema")}}


def _tool_choice(choice: Json) -> Any:
    if (kind := choice.get("type")) == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _CHOICES.get(str(kind), kind)


def _template(thinking: Json) -> Json:
    """What the chat template reads of thinking."""
    if "budget_tokens" in thinking:
        raise unsupported("thinking", thinking, 'this server counts no thinking: send {"type": "adaptive"}')
    return {"enable_thinking": thinking.get("type") != "disabled"}


def _form(form: Any) -> Any:
    if not isinstance(form, dict):
        return form
    return {"type": form.get("type"), "json_schema": {"name": "answer", **without(form, "type")}}


def _block(part: Part) -> Json:
    """A part as a content block."""
    if part.kind == "call":
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": json.loads(part.text or "{}")}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "text", "text": part.text}


def _usage(usage: Json) -> Json:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached, "output_tokens": usage["completion_tokens"],
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
    }  # fmt: skip
