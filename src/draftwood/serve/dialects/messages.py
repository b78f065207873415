"""Anthropic's Messages: ``/v1/messages``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, Final, final

from draftwood.core.checks import short_repr
from draftwood.serve.dialects.dialect import SHORTENING, Dialect, Remark, form_of, inside, objects, without
from draftwood.serve.http.errors import bad, in_anthropic
from draftwood.serve.http.fields import OtherField, unsupported
from draftwood.serve.openai.message import called
from draftwood.serve.openai.reading import Part
from draftwood.serve.openai.schemas import RouteBody
from draftwood.serve.openai.shapes import figures
from draftwood.serve.openai.streams import Json

_OTHERS: Final = {
    "container": OtherField("this server runs no code", ()),
    **dict.fromkeys(("cache_control", "inference_geo", "speed", "betas", "mcp_servers", "context_management"), OtherField()),
}
_OWN_TOOL: Final = re.compile(r"\w+_20\d{6}|mcp_toolset")
_OWN_BLOCK: Final = re.compile(r"redacted_thinking|server_tool_use|mcp_tool_use|(?!tool)\w+_tool_result|fallback|compaction")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS: Final = {"text": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking"),
                  "call": ("input_json_delta", "partial_json")}  # fmt: skip


class MessagesBody(RouteBody):
    """``/v1/messages``, and ``/v1/messages/count_tokens``, whose count does not depend on how a text ends or comes. Other
    fields are those of chats."""

    messages: list[Any]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


@final
class Messages(Dialect):
    """A message and its events."""

    prefix = "msg_"
    others = _OTHERS
    names: ClassVar = {"reasoning_effort": "output_config.effort", "thinking_token_budget": "thinking.budget_tokens"}
    whole_calls = True

    def __init__(self, body: MessagesBody) -> None:
        self._stops = body.stop_sequences
        turns, choice, config = objects("messages", body.messages), body.tool_choice or {}, body.output_config or {}
        system = [] if body.system is None else [{"role": "system", "content": _content("system", body.system)}]
        sent, tools = body.model_extra or {}, objects("tools", body.tools or [])
        if (thread := sent.get("thread")) is not None:  # the library sends the whole conversation after this code
            why = "this server keeps no conversations: send the whole one, without it"
            raise bad(f"thread is {short_repr(thread)}, but {why}", param="thread", code="thread_unsupported_request")
        left = [("tools", f"holds {tool['type']}, which is") for tool in tools if _is_left_out(tool)]
        left += [("mcp_servers", "is")] if sent.get("mcp_servers") else []
        left += [("messages", f"holds {kind}, which is") for kind in sorted({*chain(*map(_blocks_left_out, turns))})]
        self.remarks = [Remark(field, f"{says} of Anthropic's servers only") for field, says in left]
        if sent.get("context_management") not in (None, {}, {"edits": []}):
            self.remarks.append(SHORTENING)
        made = {
            "model": body.model,
            "messages": [*system, *(message for turn in turns for message in _turn(turn))],
            "continue_final_message": True if turns and turns[-1].get("role") == "assistant" else None,
            "stop": self._stops,
            "tools": None if body.tools is None else [_tool(tool) for tool in tools if not _is_left_out(tool)],
            "tool_choice": _tool_choice(choice) if choice else None,
            "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
            "chat_template_kwargs": None if body.thinking is None else _template(body.thinking),
            "thinking_token_budget": (body.thinking or {}).get("budget_tokens"),
            "reasoning_effort": config.get("effort"),
            "response_format": form_of(config.get("format") or body.output_format),
            **inside("output_config", config, "effort", "format"),
            **inside("tool_choice", choice, "type", "name", "disable_parallel_tool_use"),
            **inside("thinking", body.thinking, "type", "display", "budget_tokens"),
        }
        super().__init__(made, body.model_extra, body.stream)

    def begin(self) -> Iterable[Json]:
        yield {"type": "message_start", "message": self._message([])}

    def start(self, part: Part) -> Iterable[Json]:
        yield {"type": "content_block_start", "index": part.index, "content_block": _block(part)}

    def grow(self, part: Part, text: str, logprobs: Sequence[Json]) -> Iterable[Json]:
        kind, name = _DELTAS[part.kind]
        yield {"type": "content_block_delta", "index": part.index, "delta": {"type": kind, name: text}}

    def stop(self, part: Part) -> Iterable[Json]:
        yield {"type": "content_block_stop", "index": part.index}

    def silence(self) -> Json:
        return {"type": "ping"}

    def finish(self) -> Iterable[Json]:
        yield {"type": "message_delta", "delta": self._end(), "usage": _usage(self.answer.usage()), **figures(self.answer)}
        yield {"type": "message_stop"}

    def result(self) -> Json:
        return self._message([_block(part) for part in self.parts]) | self._end()

    def fail(self, error: Json) -> Json:
        return in_anthropic(error, 500)

    def _end(self) -> Json:
        if self.finish_reason == "stop" and self.stop_text in (self._stops or ()):
            return {"stop_reason": "stop_sequence", "stop_sequence": self.stop_text}
        return {"stop_reason": _REASONS.get(self.finish_reason or "", "end_turn"), "stop_sequence": None}

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": None, "stop_sequence": None, "stop_details": None, "container": None,
            "usage": _usage(self.answer.usage()),
        }  # fmt: skip


def _turn(turn: Json) -> Iterator[Json]:
    """A message as messages of a chat. Results of tools come before its text, as chats want them."""
    blocks: dict[str, list[Json]] = {"tool_result": [], "tool_use": [], "thinking": [], "said": []}
    content, left = turn.get("content"), _blocks_left_out(turn)
    for block in objects("messages", content) if isinstance(content, list) else ():
        if str(block.get("type")) not in left:
            blocks.get(str(block.get("type")), blocks["said"]).append(block)
    for block in blocks["tool_result"]:
        said = _content("messages", block.get("content", ""))
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said}
    if (blocks.pop("tool_result") or left) and not any(blocks.values()):
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
    return [one for part in objects(name, content) for one in _part(part)]


def _part(part: Json) -> list[Json]:
    """A part of a content as chats have it; of a document and of a search result its texts, with their title."""
    kind, source = part.get("type"), part.get("source")
    if kind == "text":
        return [without(part, "cache_control", "citations")]
    texts: Any = part.get("content") if kind == "search_result" else None
    if kind == "document" and isinstance(source, dict) and source.get("type") in ("text", "content"):
        texts = source.get("data") if source["type"] == "text" else source.get("content")
    if texts is None:
        return [{"type": kind}]
    heads = [f"{part[name]}\n" for name in ("title", "context") if part.get(name)]
    said = _content("messages", [{"type": "text", "text": texts}] if isinstance(texts, str) else texts)
    return [*({"type": "text", "text": head} for head in heads), *said, {"type": "text", "text": "\n\n"}]


def _is_left_out(tool: Json) -> bool:
    """Whether only Anthropic's servers and models know a tool, which the client does not describe."""
    return _OWN_TOOL.fullmatch(str(tool.get("type"))) is not None


def _blocks_left_out(turn: Json) -> set[str]:
    """The kinds of blocks in a message that only Anthropic's servers read."""
    content = turn.get("content")
    kinds = {str(block.get("type")) for block in content if isinstance(block, dict)} if isinstance(content, list) else ()
    return {kind for kind in kinds if _OWN_BLOCK.fullmatch(kind)}


def _tool(tool: Json) -> Json:
    if tool.get("type") not in ("custom", None):
        why = "this server runs no tools: send tools with an input_schema, which your program runs"
        raise unsupported("tools", tool, why)
    rest = without(
        tool, "type", "cache_control", "input_schema", "eager_input_streaming", "defer_loading", "allowed_callers"
    )
    return {"type": "function", "function": {**rest, "parameters": tool.get("input_schema")}}


def _tool_choice(choice: Json) -> Any:
    if (kind := choice.get("type")) == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _CHOICES.get(str(kind), kind)


def _template(thinking: Json) -> Json:
    """What the chat template reads of thinking."""
    return {"enable_thinking": thinking.get("type") != "disabled"}


def _block(part: Part) -> Json:
    if part.kind == "call":
        said = {"id": part.id, "name": part.name, "input": json.loads(part.text or "{}")}
        return {"type": "tool_use", **said, "caller": {"type": "direct"}}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "text", "text": part.text, "citations": None}


def _usage(usage: Json) -> Json:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    thoughts = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"] - cached, "output_tokens": usage["completion_tokens"],
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached, "cache_creation": None, "inference_geo": None,
        "output_tokens_details": {"thinking_tokens": thoughts}, "server_tool_use": None, "service_tier": "standard",
    }  # fmt: skip
