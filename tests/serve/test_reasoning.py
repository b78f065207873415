"""Reasoning between think tags is apart from the content, whole and in streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from draftwood.serve.reading import AnswerReader, Reading
from draftwood.serve.tool_formats import FORMATS
from tests.serve.client import MESSAGES, answer, chat
from tests.serve.scripted import HERMES, Script, calls_of, hermes, told, writing

Served = tuple[TestClient, Script]
THINKS = HERMES + "{# <think> #}"
OPENS = THINKS + "{% if add_generation_prompt and quiet is not defined %}<think>\n{% endif %}"


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """Models whose templates know reasoning: that leave it to the model, that begin it, and that have special tokens."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("thinks")
        with (
            writing(folder / "a", patch, THINKS) as plain,
            writing(folder / "b", patch, OPENS, special=["<think>", "</think>"]) as opens,
            writing(folder / "c", patch, THINKS, reasoning_parser="none") as off,
        ):
            yield {"plain": plain, "opens": opens, "off": off}


@pytest.mark.parametrize(("model", "text", "thought", "content"), [
    ("plain", "<think>\n the hen ran \n</think>\n\n the fox", "the hen ran", "the fox"),
    ("plain", " <think></think>the fox", None, "the fox"),
    ("plain", "<think> the hen", "the hen", ""),
    ("plain", "the fox <think> a hen </think>", None, "the fox <think> a hen </think>"),
    ("plain", "<thin fox", None, "<thin fox"),
    ("opens", "the hen\n</think>\nthe fox", "the hen", "the fox"),
    ("opens", "the hen </thin", "the hen </thin", ""),
    ("off", "<think>the hen</think> the fox", None, "<think>the hen</think> the fox"),
])  # fmt: skip
def test_reasoning_is_split_off(
    thinking: dict[str, Served], model: str, text: str, thought: str | None, content: str
) -> None:
    message = told(*thinking[model], text, tools=None)["message"]
    assert message.get("reasoning_content") == thought
    assert message["content"] == content


def test_calls_come_after_reasoning(thinking: dict[str, Served]) -> None:
    found = told(*thinking["opens"], f"<tool_call> it is</think>\n{hermes('get_time', '{}')}")
    assert found["message"]["reasoning_content"] == "<tool_call> it is"
    assert calls_of(found) == [("get_time", "{}")]


def test_a_grammar_holds_content(thinking: dict[str, Served]) -> None:
    client, script = thinking["opens"]
    script.text = None
    message = answer(client, chat(regex="[a-d]{3}"))["choices"][0]["message"]
    assert (len(message["content"]), "reasoning_content" in message) == (3, False)


def test_a_continued_message_goes_on_where_it_is(thinking: dict[str, Served]) -> None:
    for begun, thought, content in (
        ("<think>the hen", " ran", "the fox"), ("<think>the hen</think>so", None, " ran</think>the fox"),
    ):  # fmt: skip
        messages = [*MESSAGES, {"role": "assistant", "content": begun}]
        fields: dict[str, Any] = {"messages": messages, "continue_final_message": True, "tools": None}
        message = told(*thinking["plain"], " ran</think>the fox", **fields)["message"]
        assert (message.get("reasoning_content"), message["content"]) == (thought and thought.strip(), content)


@pytest.mark.parametrize("form", ["hermes", "mistral", "llama3_json"])
def test_how_a_text_is_cut_makes_no_difference(form: str) -> None:
    texts = [
        f"<think> a </think> b {hermes('f', '{}')} c ",
        '<think>[TOOL_CALLS]</think>x [TOOL_CALLS] [{"name": "f", "arguments": {"a": "]}"}}, {"name": "g"}] y',
        '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": [1]}  [TOOL_CALLS]g{} [TOOL_CALLS] none',
        ' {"name": "f", "parameters": {"a": {"b": "\\\\"}}} ; {"parameters": {}, "name": "g"} and {',
    ]
    for text in texts:

        def read(cuts: list[str]) -> dict[str, Any]:
            reader = AnswerReader(Reading(thinks=False, form=FORMATS[form], names=frozenset("fg")))
            deltas = [delta for cut in cuts for delta in reader.push(cut)] + reader.push("", last=True)
            found = reader.message()
            calls = [call["function"] for call in found.get("tool_calls", ())]
            parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
            for name in ("content", "reasoning_content"):
                assert "".join(delta.get(name, "") for delta in deltas) == (found.get(name) or "")
            for index, call in enumerate(calls):
                written = (part["function"]["arguments"] for part in parts if part["index"] == index)
                assert "".join(written) == call["arguments"]
            return {**found, "tool_calls": calls}

        whole = read([text])
        for size in range(1, 9):
            assert read([text[at : at + size] for at in range(0, len(text), size)]) == whole
