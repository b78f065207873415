"""Answers of chats as they were recorded: whole, and in chunks."""

from __future__ import annotations

from typing import Any

_HEAD = {"id": "chatcmpl-1f", "created": 1700000000, "model": "tiny"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16, "prompt_tokens_details": {"cached_tokens": 4}}
_CALLS = [("call_1", "weather", '{"city": "Oslo"}'), ("call_2", "time", "{}")]


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **fields}
    return {**_HEAD, "object": "chat.completion.chunk", "usage": {**USAGE, "completion_tokens": 0}, "choices": [choice]}


def call(index: int, arguments: str, *, first: bool = False) -> dict[str, Any]:
    """A part of a call's delta."""
    named = {"id": _CALLS[index][0], "type": "function"} if first else {}
    function = {"name": _CALLS[index][1], "arguments": arguments} if first else {"arguments": arguments}
    return {"tool_calls": [{"index": index, **named, "function": function}]}


def chunks(*parts: str, finish_reason: str = "stop", **last: Any) -> list[dict[str, Any]]:
    """A stream with reasoning, a text, or two calls."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if "reasoning" in parts:
        deltas += [{"reasoning_content": "Let me "}, {"reasoning_content": "think."}]
    if "text" in parts:
        deltas += [{"content": "Hello "}, {"content": "there"}]
    if "calls" in parts:
        deltas += [call(0, "", first=True), call(0, '{"city": '), call(0, '"Oslo"}'), call(1, "{}", first=True)]
    end = {**_HEAD, "object": "chat.completion.chunk", "usage": USAGE, "choices": []}
    return [*map(chunk, deltas), chunk({}, finish_reason, **last), end]


def whole(*parts: str, finish_reason: str = "stop", **last: Any) -> dict[str, Any]:
    """The same answer, whole."""
    message: dict[str, Any] = {"role": "assistant", "content": "Hello there" if "text" in parts else None, "refusal": None}
    if "reasoning" in parts:
        message["reasoning_content"] = "Let me think."
    if "calls" in parts:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in _CALLS
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason, **last}
    return {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
