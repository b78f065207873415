"""What agents send is taken, with a model that writes a script; `python -m benchmarks clients --agents` runs agents."""

import json
import logging
import re
from pathlib import Path

import pytest

from tests.serve.client import answer
from tests.serve.conftest import loaded, make_service, serving
from tests.serve.interfaces import RESPONSES, assembled, events_of
from tests.serve.test_tools import hermes, writing

GO = {"role": "user", "content": "Go"}
TOOLS, CASES = json.loads(Path(__file__).with_name("agents.json").read_text()).values()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, writing(tmp_path_factory.mktemp("agents"), patch, length=4096) as found:
        yield found


@pytest.fixture(scope="module")
def strict(folders):
    with serving(make_service(loaded(folders), unknown_fields="refuse")) as found:
        yield found


@pytest.mark.parametrize(("name", "arguments", "item"), [
    ("helpers.close", "{}", {"type": "function_call", "namespace": "helpers", "name": "close", "arguments": "{}"}),
    ("patch", '{"input": "a\\nb"}', {"type": "custom_tool_call", "name": "patch", "input": "a\nb"}),
    ("local_shell", '{"command": ["ls"]}',
     {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}}),
])  # fmt: skip
def test_calls_of_every_kind_come_back_as_their_own_items(scripted, name, arguments, item):
    client, script = scripted
    script.text = hermes(name, arguments)
    body = {"input": [GO], "tools": TOOLS, "max_output_tokens": 300}
    found = answer(client, body, path=RESPONSES)
    [made] = found["output"]
    assert {key: made[key] for key in item} == item
    assert [warning.partition(",")[0] for warning in found["warnings"]] == [
        "tools holds web_search", "tools holds image_generation", "tools holds mcp"]  # fmt: skip
    events = events_of(client, RESPONSES, body)
    [streamed] = assembled(events)["output"]
    assert {key: streamed[key] for key in item} == item
    kinds = {event["type"].split(".")[1] for event in events}
    whose = {"function_call_arguments": "function_call", "custom_tool_call_input": "custom_tool_call"}
    assert [whose[kind] for kind in kinds & whose.keys()] == [item["type"]] * (item["type"] in whose.values())
    history = [GO, made, {"type": f"{item['type']}_output", "call_id": made["call_id"], "output": "done"}, GO]
    script.text = "ok"
    assert answer(client, {**body, "input": history}, path=RESPONSES)["output"][0]["content"][0]["text"] == "ok"


def test_the_pattern_of_a_custom_tool_holds_a_call_that_must_come(scripted):
    scripted[1].text = None
    body = {"input": [GO], "tools": TOOLS, "tool_choice": {"type": "custom", "name": "patch"}, "seed": 3}
    [made] = answer(scripted[0], body, path=RESPONSES)["output"]
    assert re.fullmatch("[ab]{3}", made["input"])
    some = [{"type": "mcp", "server_label": "a"}, {"type": "custom", "name": "patch"}]
    body["tool_choice"] = {"type": "allowed_tools", "mode": "required", "tools": some}
    found = answer(scripted[0], body, path=RESPONSES)
    assert [item["name"] for item in found["output"]] == ["patch"] * len(found["output"])
    assert found["tool_choice"] == body["tool_choice"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_agents_send_is_taken_with_a_line_or_refused_in_a_sentence(scripted, strict, case):
    client, script = scripted
    script.text, words = "ok", case.get("says", [])
    response = client.post(case["path"], json=case["body"])
    assert response.status_code == (400 if "refused" in case else 200), response.text
    assert case.get("refused", "") in response.text
    warnings = response.json().get("warnings", [])
    assert len(warnings) == len(words)
    assert all(word in line for word, line in zip(words, warnings, strict=True)), warnings
    if warnings:
        response = strict.post(case["path"], json=case["body"])
        assert response.status_code == 400
        assert case["path"] != RESPONSES or response.json()["error"]["param"] in case["body"], response.text


def test_a_long_conversation_loses_its_beginning_where_the_request_says_so(scripted):
    client, script = scripted
    script.text = "ok"
    told = [{"role": "user", "content": f"{n} " + "the fox ran " * 60} for n in range(40)]
    body = {"input": [{"role": "developer", "content": "Be brief."}, *told, GO]}
    assert client.post(RESPONSES, json=body).status_code == 400
    found = answer(client, {**body, "truncation": "auto"}, path=RESPONSES)
    assert "oldest messages were left out" in found["warnings"][0]
    assert 1000 < found["usage"]["input_tokens"] < 4096
    alone = {"input": [{"role": "user", "content": "the fox ran " * 9000}], "truncation": "auto"}
    assert client.post(RESPONSES, json=alone).status_code == 400


def test_the_log_says_how_much_of_a_long_prompt_was_read(scripted, monkeypatch, caplog):
    monkeypatch.setattr("draftwood.engine.prompts.ALONE", 300)
    monkeypatch.setattr("draftwood.serve.decoding.rows.KEEP_ALIVE_SECONDS", 0)
    scripted[1].text = "ok"
    with caplog.at_level(logging.INFO, "draftwood"):
        answer(scripted[0], {"input": "the fox ran " * 300}, path=RESPONSES)
    assert re.search(r": 300 of \d{3,} tokens of its prompt are read", caplog.text)
