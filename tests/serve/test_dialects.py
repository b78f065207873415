"""Other programs' interfaces are translations: from their requests to chats, and from answers to chats to their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from draftwood.serve.dialects.dialect import Dialect
from draftwood.serve.dialects.messages import Messages, MessagesBody
from draftwood.serve.dialects.ollama import OllamaChat, OllamaChatBody, OllamaGenerate, OllamaGenerateBody
from draftwood.serve.dialects.responses import Responses, ResponsesBody
from draftwood.serve.errors import ApiError
from tests.serve.recorded import call, chunk, chunks, whole

PARTS = [("text",), ("reasoning", "text"), ("calls",), ("reasoning", "text", "calls")]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def responses(**body: Any) -> Responses:
    return Responses(ResponsesBody.model_validate({"input": "Hello", **body}))


def messages(**body: Any) -> Messages:
    return Messages(MessagesBody.model_validate({"messages": [{"role": "user", "content": "Hello"}], **body}))


def ollama(**body: Any) -> OllamaChat:
    return OllamaChat(OllamaChatBody.model_validate({"messages": [{"role": "user", "content": "Hello"}], **body}))


def generate(chats: bool = True, **body: Any) -> OllamaGenerate:
    return OllamaGenerate(OllamaGenerateBody.model_validate({"prompt": "Hello", **body}), chats=chats)


def named(dialect: Dialect, answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "id": dialect.named(answer["id"])}


def events(dialect: Dialect, *parts: str, **last: Any) -> list[dict[str, Any]]:
    """The events of a recorded stream."""
    found = [event for chunk in chunks(*parts, **last) for event in dialect.events(named(dialect, chunk))]
    return [*found, *dialect.ending()]


def answer(dialect: Dialect, *parts: str, **last: Any) -> dict[str, Any]:
    return dialect.whole(named(dialect, whole(*parts, **last)))


# ---- requests ----


def test_the_input_of_a_response_becomes_the_messages_of_a_chat() -> None:
    part = {"type": "input_text", "text": "Weather?"}
    items = [
        {"role": "user", "content": [part]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "I call."}]},
        {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": "A moment."},
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "cold"},
        {"type": "function_call_output", "call_id": "c2", "output": [part]},
    ]
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id, name in (("c1", "weather"), ("c2", "time"))
    ]
    assert responses(input=items, instructions="Be brief.").chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "reasoning_content": "I call.", "content": "A moment.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "cold"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "Weather?"}]},
    ]
    assert [one["content"] for one in responses(input=[items[2], items[2]]).chat["messages"]] == ["A moment."] * 2


def test_the_settings_of_a_response_become_those_of_a_chat() -> None:
    tool = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
    chat = responses(
        model="m", max_output_tokens=5, temperature=0.5, seed=3, tools=[tool], tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}, "verbosity": "low"}, stream=True,
        reasoning={"effort": "low"}, include=["message.output_text.logprobs"], background=False, truncation="disabled",
    ).chat  # fmt: skip
    del chat["messages"]
    assert chat == {
        "model": "m", "max_tokens": 5, "temperature": 0.5, "seed": 3,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, "verbosity": "low",
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "reasoning_effort": "low", "logprobs": True,
    }  # fmt: skip


def test_the_blocks_of_a_message_become_the_messages_of_a_chat() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I call.", "signature": ""}, {"type": "text", "text": "A moment."},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "cold"}]},
            {"type": "text", "text": "And?"}]},
        {"role": "assistant", "content": "It is"},
    ]  # fmt: skip
    chat = messages(messages=turns, system=[{"type": "text", "text": "Be brief."}]).chat
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    moment = {"role": "assistant", "content": [{"type": "text", "text": "A moment."}]}
    assert chat["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {**moment, "reasoning_content": "I call.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "cold"}]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
        {"role": "assistant", "content": "It is"},
    ]
    assert chat["continue_final_message"] is True
    assert "continue_final_message" not in messages(messages=turns[:3]).chat


def test_the_settings_of_a_message_become_those_of_a_chat() -> None:
    chat = messages(
        max_tokens=5, stop_sequences=["x"], top_k=4, tools=[{"name": "f", "input_schema": SCHEMA}],
        metadata={"user_id": "u"}, tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    ).chat  # fmt: skip
    del chat["messages"]
    assert chat == {
        "max_tokens": 5, "stop": ["x"], "top_k": 4, "metadata": {"user_id": "u"}, "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    }  # fmt: skip


def test_a_chat_of_ollama_becomes_a_chat() -> None:
    history = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "thinking": "I call.",
         "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "content": "cold", "tool_name": "weather"},
    ]  # fmt: skip
    options = {"num_predict": 5, "temperature": 0.5, "stop": ["x"], "num_ctx": 4096, "min_p": 0.1}
    chat = ollama(model="m:latest", messages=history, options=options, format=SCHEMA, keep_alive="5m", think=True).chat
    call = {"id": "call_1_0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    assert chat.pop("messages") == [
        history[0],
        {"role": "assistant", "content": "", "reasoning_content": "I call.", "tool_calls": [call]},
        {"role": "tool", "content": "cold", "name": "weather", "tool_call_id": "call_1_0"},
    ]
    assert chat == {
        "model": "m", "max_tokens": 5, "temperature": 0.5, "stop": ["x"], "min_p": 0.1, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        "chat_template_kwargs": {"enable_thinking": True},
    }  # fmt: skip


def test_a_prompt_of_ollama_is_a_chat_or_continued_as_it_is() -> None:
    made = generate(system="Be brief.", stream=False)
    roles = [("system", "Be brief."), ("user", "Hello")]
    assert [(one["role"], one["content"]) for one in made.chat["messages"]] == roles
    for plain in (generate(raw=True, think=False), generate(chats=False)):
        assert "chat_template_kwargs" not in plain.chat
        assert (plain.path, plain.chat["prompt"], plain.chat["max_tokens"]) == ("/v1/completions", "Hello", 128)
    assert generate(raw=True, options={"num_predict": 5}).chat["max_tokens"] == 5


@pytest.mark.parametrize(("make", "body", "said"), [
    (responses, {"previous_response_id": "r"}, "previous_response_id"), (responses, {"conversation": "c"}, "conversation"),
    (responses, {"background": True}, "background"), (responses, {"tools": [{"type": "web_search"}]}, "runs no tools"),
    (responses, {"tool_choice": {"type": "file_search"}}, "runs no tools"),
    (responses, {"truncation": "auto"}, "truncation"),
    (responses, {"input": [{"type": "item_reference", "id": "i"}]}, "item_reference"),
    (responses, {"n": 2}, "n is 2"),
    (responses, {"input": ["a"]}, "list of objects"), (responses, {"messages": []}, "messages"),
    (messages, {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "runs no tools"),
    (messages, {"mcp_servers": [{}]}, "mcp_servers"),
    (messages, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "count"),
    (messages, {"messages": ["a"]}, "list of objects"), (messages, {"n": 2}, "n is 2"),
    (ollama, {"format": "xml"}, "xml"), (ollama, {"template": "t"}, "template"),
    (ollama, {"messages": [1]}, "list of objects"),
    *((generate, {"raw": True, name: value}, f"{name} is") for name, value in
      (("system", "s"), ("images", ["aGk="]), ("think", True), ("think", "high"))),
    (generate, {"context": [1]}, "context"),
])  # fmt: skip
def test_what_is_not_there_is_refused_by_name(make: Any, body: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError, match=said) as found:
        make(**body)
    assert found.value.param is not None


# ---- answers ----


def test_log_probabilities_of_calls_and_reasoning_make_no_text() -> None:
    logprobs = {"content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]}
    made = responses()
    for delta in (call(0, "{}", first=True), {"reasoning_content": "a"}, {"content": "a"}):
        list(made.events(named(made, chunk(delta, logprobs=logprobs))))
    assert [(part.kind, len(part.logprobs)) for part in made.parts] == [("call", 0), ("reasoning", 0), ("text", 1)]


@pytest.mark.parametrize("parts", PARTS)
def test_the_events_of_a_response_are_those_of_the_client_and_lead_to_the_whole(parts: tuple[str, ...]) -> None:
    found = events(responses(), *parts)
    for event in found:
        EVENTS.validate_python(event, strict=True)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    last = found[-1]
    assert last["type"] == "response.completed"
    assert last["response"] == answer(responses(), *parts)
    Response.model_validate(last["response"], strict=True)
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    for index, item in enumerate(done):
        deltas = [event["delta"] for event in found if event.get("output_index") == index and "delta" in event]
        assert "".join(deltas) == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    kinds = {"reasoning": ["reasoning"], "text": ["message"], "calls": ["function_call"] * 2}
    assert [item["type"] for item in done] == [kind for part in parts for kind in kinds[part]]
    assert last["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 4


def test_the_events_of_a_text_come_in_their_order() -> None:
    assert [event["type"].removeprefix("response.") for event in events(responses(), "text", finish_reason="length")] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    assert [event["type"] for event in events(messages(), "text")] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip


@pytest.mark.parametrize("parts", PARTS)
def test_the_events_of_a_message_lead_to_the_whole(parts: tuple[str, ...]) -> None:
    reason = "tool_calls" if "calls" in parts else "stop"
    found, made = events(messages(), *parts, finish_reason=reason), answer(messages(), *parts, finish_reason=reason)
    content: list[dict[str, Any]] = []
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = dict(event["delta"])
            del delta["type"]
            [(name, text)] = delta.items()
            content[event["index"]][name] = content[event["index"]].get(name, "") + text
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_json"))
    assert content == made["content"]
    assert found[-2]["delta"] == {"stop_reason": made["stop_reason"], "stop_sequence": None}
    assert made["stop_reason"] == ("tool_use" if "calls" in parts else "end_turn")
    assert found[-2]["usage"] == made["usage"] | {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 7}
    assert found[0]["message"]["usage"]["output_tokens"] == 0


def test_a_message_says_which_stop_sequence_ended_it() -> None:
    for stop_reason, wanted in (("x", ("stop_sequence", "x")), (None, ("end_turn", None))):
        made = answer(messages(stop_sequences=["x"]), "text", stop_reason=stop_reason)
        assert (made["stop_reason"], made["stop_sequence"]) == wanted
    assert answer(messages(), "text", finish_reason="length")["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("parts", PARTS)
def test_the_lines_of_ollama_lead_to_the_whole(parts: tuple[str, ...]) -> None:
    found, made = events(ollama(), *parts), answer(ollama(), *parts)
    said = [line["message"] for line in found]
    assert (
        "".join(one["content"] for one in said) == made["message"]["content"] == ("Hello there" if "text" in parts else "")
    )
    assert "".join(one.get("thinking", "") for one in said) == made["message"].get("thinking", "")
    calls = [call["function"] for one in said for call in one.get("tool_calls", ())]
    assert calls == [call["function"] for call in made["message"].get("tool_calls", ())]
    if "calls" in parts:
        assert calls == [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "time", "arguments": {}}]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert (made["done_reason"], made["prompt_eval_count"], made["eval_count"]) == ("stop", 9, 7)
    assert [answer(generate(), *parts)["response"]] == [made["message"]["content"]]


def test_an_error_in_a_stream_has_the_shape_of_its_interface() -> None:
    error = {"error": {"message": "it broke", "type": "server_error", "param": None, "code": None}}
    made = responses()
    list(made.events(named(made, chunks("text")[0])))
    [failed] = made.fail(error)
    EVENTS.validate_python(failed, strict=True)
    assert failed["response"]["error"]["message"] == "it broke"
    assert messages().failed(error).startswith(b'event: error\ndata: {"error":{"type":"api_error","message":"it broke"}')
    assert ollama().failed(error) == b'{"error":"it broke"}\n'
