"""Models behind the server that write a script: a logits processor forces every token, in the draft model too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import draftwood
from draftwood import LoadOptions, Pair, Stateless
from draftwood.sampling.processors import ByPrompt
from draftwood.serve import prepare
from tests.serve.client import answer, chat, streamed
from tests.serve.conftest import DRAWS, make_service, serving
from tests.tiny_chat import TEMPLATE, chat_tokenizer, save_chat

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
NATIVE = "{% if tools %}<s>tools\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<end>\n{% endif %}"
"""Writes tools, and says nothing of the format of calls."""
CALLS = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}[{{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}]"
    "{% endfor %}<end>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
HERMES, LLAMA, MISTRAL, ARGS = (
    NATIVE + CALLS + "{# " + sign + " #}" for sign in ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[TOOL_CALLS][ARGS]")
)


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Script:
    """What the model writes; None leaves it free."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.text: str | None = None

    def processor(self) -> ByPrompt:
        tokens = [*self.pair.tokenizer(self.text, add_special_tokens=False)["input_ids"], 0]

        def behind(length: int) -> Stateless:
            def forced(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
                wanted = tokens[min(max(0, ids.shape[1] - length), len(tokens) - 1)]
                found = torch.full_like(scores, -torch.inf)
                found[:, wanted] = 0
                return found

            return Stateless(forced)

        return ByPrompt(behind)


@contextmanager
def writing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, template: str = TEMPLATE, *, special: list[str] | None = None,
    **options: Any,
) -> Iterator[tuple[TestClient, Script]]:  # fmt: skip
    """A server whose model writes a script. ``special`` are further special tokens."""
    tokenizer = chat_tokenizer(template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>", *(special or ())]})
    folders = [
        save_chat(folder / name, tokenizer=tokenizer, generation=DRAWS, layers=layers, max_position_embeddings=2048)
        for name, layers in (("target", 2), ("draft", 1))
    ]
    pair = draftwood.load(*folders, options=LoadOptions(dtype="float32", device="cpu", backend="torch", profile="none"))
    script, plain = Script(pair), prepare.sampling_of

    def scripted(*given: Any) -> Any:
        found = plain(*given)
        if given[0] is not pair or script.text is None:
            return found
        return replace(found, processors=[script.processor()])

    monkeypatch.setattr(prepare, "sampling_of", scripted)
    with serving(make_service(pair, **options)) as client:
        yield client, script


def told(client: TestClient, script: Script, text: str, **fields: Any) -> dict[str, Any]:
    """The choice of an answer in which the model writes a text: whole, and the same from a stream, drafted and not."""
    script.text = text
    body = {"tools": TOOLS, "max_tokens": 800, **fields}
    found = dict(answer(client, chat(**body))["choices"][0])
    for speculative in (True, False):
        assert same(from_stream(client, speculative=speculative, **body), found)
    return found


def from_stream(client: TestClient, **fields: Any) -> dict[str, Any]:
    """The choice that the chunks of a stream make, as clients put them together."""
    content, thought, calls, reason = "", "", list[dict[str, Any]](), None
    for chunk in streamed(client, chat(**fields)):
        [one] = chunk["choices"]
        content += one["delta"].get("content", "")
        thought += one["delta"].get("reasoning_content", "")
        for part in one["delta"].get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(calls)
                assert part["function"]["arguments"] == "" or json.loads(part["function"]["arguments"]) is not None
                calls.append({**{name: part[name] for name in ("id", "type")}, "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        reason = one["finish_reason"] or reason
    message = {"role": "assistant", "content": content, "reasoning_content": thought, "tool_calls": calls}
    return {"message": message, "finish_reason": reason}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two choices say the same, whatever the ids of their calls."""

    def said(choice: dict[str, Any]) -> tuple[Any, ...]:
        message = choice["message"]
        calls = [(call["type"], call["function"]) for call in message.get("tool_calls", ())]
        return message["content"] or "", message.get("reasoning_content", ""), calls, choice["finish_reason"]

    return said(one) == said(other)


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and arguments of the calls of a choice."""
    calls = choice["message"].get("tool_calls", ())
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
