"""The answers of every interface: the events of a stream, the answer that its clients make of them, and what it says."""

import json
from typing import NamedTuple

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.serve.client import COMPLETIONS, chunks

RESPONSES, MESSAGES_ROUTE, OLLAMA, GENERATE = "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"
EVENTS = TypeAdapter(ResponseStreamEvent)
ALWAYS = """\
    background completed_at created_at error frequency_penalty id incomplete_details instructions max_output_tokens
    max_tool_calls metadata model object output parallel_tool_calls presence_penalty previous_response_id prompt_cache_key
    reasoning safety_identifier service_tier status store temperature text tool_choice tools top_logprobs top_p truncation
    usage
"""  # what a response has by the document of Open Responses


def request(path, text="the fox ran", size=None, *, stop=None, seed=None, tools=None):
    """A request in the words of an interface; ``tools`` are those of chats."""
    flat = tools and [{"type": "function", **tool["function"]} for tool in tools]
    if path == MESSAGES_ROUTE and tools:
        tools = [{"name": one["name"], "input_schema": one.get("parameters", {"type": "object"})} for one in flat]
    prompt = {RESPONSES: "input", GENERATE: "prompt", COMPLETIONS: "prompt"}.get(path, "messages")
    made = {prompt: [{"role": "user", "content": text}] if prompt == "messages" else text}
    made["tools"] = flat if path == RESPONSES else tools
    if path in (OLLAMA, GENERATE):
        options = {"num_predict": size, "stop": stop, "seed": seed}
        made["options"] = {name: value for name, value in options.items() if value is not None}
    else:
        made["max_output_tokens" if path == RESPONSES else "max_tokens"] = size
        made |= {"stop_sequences" if path == MESSAGES_ROUTE else "stop": stop, "seed": seed}
    return {name: value for name, value in made.items() if value is not None}


class Said(NamedTuple):
    """What an answer says, and why it ended in the words of its interface."""

    thought: str
    text: str
    calls: list
    end: str


def said(found):
    """What an answer says: one of OpenAI's Responses, Anthropic's Messages or Ollama, or a choice of a chat."""
    if "output" in found:
        calls = [(item["name"], item["arguments"]) for item in found["output"] if item["type"] == "function_call"]
        texts = (
            "".join(item["content"][0]["text"] for item in found["output"] if item["type"] == kind)
            for kind in ("reasoning", "message")
        )
        return Said(*texts, calls, found["status"])
    if "content" in found:
        calls = [(block["name"], block["input"]) for block in found["content"] if block["type"] == "tool_use"]
        texts = ("".join(block.get(name, "") for block in found["content"]) for name in ("thinking", "text"))
        return Said(*texts, calls, found["stop_reason"])
    message = found.get("message") or {"content": found["response"]}
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(function["name"], function["arguments"]) for function in functions]
    thought = message.get("reasoning_content") or message.get("thinking") or ""
    return Said(thought, message["content"] or "", calls, found.get("finish_reason") or found["done_reason"])


def error_of(response):
    """The sentence of an error."""
    error = response.json()["error"]
    return error if isinstance(error, str) else error["message"]


def events_of(client, path, body):
    """The events of a stream: chunks of a chat, events with names, or lines of JSON."""
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("application/x-ndjson"):
        return [json.loads(line) for line in response.text.splitlines()]
    if not response.text.startswith("event: "):
        return chunks(response.text)
    found = []
    for part in filter(None, response.text.split("\n\n")):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def assembled(events):
    """The answer that the clients of an interface make of the events of a stream."""
    if "choices" in events[0]:
        return _choice(events)
    return {"response.created": _response, "message_start": _message}.get(events[0].get("type"), _lines)(events)


def _choice(found):
    """As the official client makes it."""
    state = ChatCompletionStreamState()
    for chunk in found:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    [made] = state.current_completion_snapshot.model_dump()["choices"]
    return made


def _response(events):
    assert [EVENTS.validate_python(event, strict=True).sequence_number for event in events] == list(range(len(events)))
    made, kinds = events[-1]["response"], [event["type"] for event in events]
    assert [*kinds[:2], kinds[-1]] == ["response.created", "response.in_progress", f"response.{made['status']}"]
    Response.model_validate(made, strict=True)
    assert {*ALWAYS.split()} <= {*made}
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == made["output"]
    for index, item in enumerate(made["output"]):
        deltas = [event["delta"] for event in events if event.get("output_index") == index and "delta" in event]
        text = item["content"][0]["text"] if "content" in item else item.get("arguments", item.get("input", ""))
        assert "".join(deltas) == text
    ended = [event["arguments"] for event in events if event["type"] == "response.function_call_arguments.done"]
    calls = [item for item in made["output"] if item["type"] == "function_call"]
    assert ended == [item["arguments"] for item in calls if item["status"] == "completed"]
    return made


def _message(events):
    content = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            block, (_, (name, text)) = content[event["index"]], event["delta"].items()
            block[name] = block.get(name, "") + text
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_json"))
    end, stop = events[-2:]
    assert (end["type"], stop["type"]) == ("message_delta", "message_stop")
    return events[0]["message"] | {"content": content, "usage": end["usage"]} | end["delta"]


def _lines(lines):
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    if "response" in lines[0]:
        return lines[-1] | {"response": "".join(line["response"] for line in lines)}
    messages = [line["message"] for line in lines]
    made = {name: "".join(message.get(name, "") for message in messages) for name in ("content", "thinking")}
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return lines[-1] | {"message": {**made, "tool_calls": calls}}
