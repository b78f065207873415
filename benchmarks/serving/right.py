"""Right bodies of every route that takes one, short to answer, with every kind of turn."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.serving.client import CHATS, COMPLETIONS
from benchmarks.serving.routes import FUNCTION

_SHORT: Final = {"max_tokens": 2, "temperature": 1.0, "seed": 1}
_OPTIONS: Final = {"num_predict": 2, "temperature": 1.0, "seed": 1, "stop": ["x"], "num_ctx": 64}
_SCHEMA: Final = FUNCTION["parameters"]
_TOOL: Final = {"type": "function", "function": FUNCTION}
_ASKED: Final = {"role": "user", "content": "Weather?"}
_ARGUMENTS: Final = '{"place": "Oslo"}'
_CALL: Final = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": _ARGUMENTS}}
_RESULT: Final = {"role": "tool", "tool_call_id": "a", "content": "Sunny"}
RIGHT: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (COMPLETIONS, {**_SHORT, "prompt": "Once", "stop": ["x"], "logit_bias": {"3": 1.0}, "n": 1, "stream": False}),
    (CHATS, {
        **_SHORT, "stream": True, "stream_options": {"include_usage": True}, "speculative": False,
        "messages": [
            {"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ],
    }),
    (CHATS, {
        **_SHORT, "max_tokens": 40, "stream": True,
        "tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False,
        "messages": [_ASKED, {"role": "assistant", "content": None, "tool_calls": [_CALL]}, _RESULT, _ASKED],
    }),
    (CHATS, {
        **_SHORT, "messages": [_ASKED, {"role": "assistant", "content": "It"}], "continue_final_message": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}},
        "logprobs": True, "top_logprobs": 1, "chat_template_kwargs": {"a": 1},
    }),
    ("/v1/responses", {
        "max_output_tokens": 2, "temperature": 1.0, "instructions": "Be kind.", "stream": True,
        "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto", "reasoning": {"effort": "none"},
        "input": [
            _ASKED, {"type": "function_call", "call_id": "a", "name": "weather", "arguments": _ARGUMENTS},
            {"type": "function_call_output", "call_id": "a", "output": "Sunny"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And then?"}]},
        ],
    }),
    ("/v1/responses", {"max_output_tokens": 2, "input": "Hi", "text": {"format": {"type": "json_object"}}}),
    ("/v1/responses/input_tokens", {"input": [_ASKED], "instructions": "Be kind."}),
    ("/v1/messages", {
        **_SHORT, "system": [{"type": "text", "text": "Be kind."}], "stop_sequences": ["x"], "stream": True,
        "tools": [{"name": "weather", "description": "Says it.", "input_schema": _SCHEMA}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "messages": [
            _ASKED, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "Sunny"}]},
        ],
    }),
    ("/v1/messages/count_tokens", {"messages": [_ASKED], "system": "Be kind."}),
    ("/api/chat", {
        "options": _OPTIONS, "tools": [_TOOL], "keep_alive": "5m", "stream": True,
        "messages": [
            _ASKED, {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
            {"role": "tool", "tool_name": "weather", "content": "Sunny"},
        ],
    }),
    ("/api/generate", {"prompt": "Once", "options": _OPTIONS, "format": "json", "stream": False}),
    ("/api/generate", {"prompt": "Once", "options": _OPTIONS, "raw": True, "think": False}),
    ("/api/pull", {"stream": False}),
    ("/api/show", {"verbose": False}),
    ("/tokenize", {"prompt": "Once upon a time"}),
    ("/tokenize", {"messages": [_ASKED], "add_special_tokens": False}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
)  # fmt: skip
GETS: Final = (
    "/", "/docs", "/openapi.json", "/version", "/health", "/metrics", "/v1", "/v1/models", "/v1/models/none", "/api/tags",
    "/api/version", "/v1/traces/none", "/v1/traces/none/race?plain=none", "/v1/traces/german/rounds/1",
)  # fmt: skip
"""Addresses of the routes without a body."""


def valid(model: str) -> list[tuple[str, dict[str, Any]]]:
    """Paths and right bodies, with the model's name."""
    return [(path, {"model": model, **body}) for path, body in RIGHT]
