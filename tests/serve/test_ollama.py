"""What Ollama's clients do besides asking for texts: they list, load, unload and pull models, and read durations."""

import json

import pytest

from tests.serve.client import MESSAGES, completion
from tests.serve.conftest import loaded, make_service, serving

CHAT, GENERATE = "/api/chat", "/api/generate"
FULL = {CHAT: {"messages": MESSAGES}, GENERATE: {"prompt": "the fox ran"}}
KEPT, UNLOADED = (None, -1, "5m", "-1", 1.5, "1h30m", "-0.5s", ".5"), (0, 0.0, "0", "0s", "0h0m", "-0")


def lines(client, path, **fields):
    response = client.post(path, json={"model": "tiny:latest", "options": {"num_predict": 6, "seed": 1}, **fields})
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def said(found):
    return "".join(line["response"] if "response" in line else line["message"]["content"] for line in found)


@pytest.mark.parametrize(
    ("path", "empty"), [(CHAT, {}), (CHAT, {"messages": []}), (GENERATE, {}), (GENERATE, {"prompt": ""})]
)
def test_a_request_without_a_text_loads_or_unloads_the_model(client, path, empty):
    text = said(lines(client, path, **FULL[path]))
    for value in (*KEPT, *UNLOADED):
        for stream in ({}, {"stream": False}):
            [found] = lines(client, path, keep_alive=value, **empty, **stream)
            assert (found["model"], found["done"], said([found])) == ("tiny", True, "")
            assert found["done_reason"] == ("unload" if value in UNLOADED else "load")
        assert said(lines(client, path, keep_alive=value, **FULL[path])) == text, "the model stays"
    assert client.post(path, json={"model": "other", **empty}).status_code == 404


@pytest.mark.parametrize("value", ["soon", "", "5 m", "m", True, [], {}])
def test_what_is_no_duration_is_refused_by_name(client, value):
    response = client.post(GENERATE, json={"prompt": "a", "keep_alive": value})
    assert response.status_code == 400
    assert response.json()["error"].startswith("keep_alive is ")


@pytest.mark.parametrize("path", FULL)
@pytest.mark.parametrize("stream", [True, False])
def test_durations_add_up_and_none_is_zero(client, path, stream):
    end = lines(client, path, stream=stream, **FULL[path])[-1]
    parts = [end[f"{name}_duration"] for name in ("load", "prompt_eval", "eval")]
    assert sum(parts) == end["total_duration"]
    assert min(parts[1:]) > 0
    assert (end["prompt_eval_count"] > 0, end["eval_count"]) == (True, 6)


def test_the_model_is_listed_and_loaded_and_stays_the_same(folders):
    found = []
    for _ in range(2):
        with serving(make_service(loaded(folders), name=("tiny", "second"))) as client:
            found += [client.get(path).json()["models"] for path in ("/api/tags", "/api/tags/", "/api/ps")]
    tags, _, loads = found[:3]
    assert found == [tags, tags, loads] * 2, "between calls and restarts"
    assert [one["name"] for one in tags] == [one["model"] for one in loads] == ["tiny", "second"]
    assert len(bytes.fromhex(tags[0]["digest"])) == 32
    assert tags[0]["modified_at"] > "2020"
    assert [one | {"context_length": 512, "size_vram": 0, "expires_at": loads[0]["expires_at"]} for one in tags] == loads
    (folders[0] / "model.safetensors").touch()
    with serving(make_service(loaded(folders))) as client:
        assert client.get("/api/tags").json()["models"][0]["digest"] != tags[0]["digest"], "control: another file"


def test_the_served_model_is_pulled_at_once_and_no_other(client):
    for body in ({"model": "tiny"}, {"name": "tiny:latest", "stream": False}, {"model": "tiny", "insecure": True}):
        assert lines(client, "/api/pull", **body)[-1] == {"status": "success"}
    for path, name in (("/api/pull", "llama3.2"), ("/api/show", "llama3.2"), ("/api/show", "")):
        response = client.post(path, json={"model": name})
        assert (response.status_code, "this server has 'tiny'" in response.json()["error"]) == (404, True)


def test_the_address_answers_with_and_without_a_page(client, served):
    with serving(make_service(served, max_traces=0)) as bare:
        for one in (client, bare):
            assert [one.request(method, "/").status_code for method in ("GET", "HEAD")] == [200, 200]
        assert bare.get("/").text.startswith("Draftwood is running")


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 200), ({"Content-Type": "application/x-www-form-urlencoded"}, 200), ({"Content-Type": "text/plain"}, 400),
    ({"Origin": "http://a"}, 400), ({"Origin": "http://a", "Content-Type": "application/x-www-form-urlencoded"}, 400),
    ({"Origin": "http://a", "Content-Type": "application/json"}, 200),
])  # fmt: skip
def test_programs_need_no_type_of_content_and_pages_do(client, headers, status):
    for path, body in ((CHAT, {**FULL[CHAT], "options": {"num_predict": 1}}), ("/v1/completions", completion())):
        response = client.post(path, content=json.dumps(body), headers=headers)
        assert response.status_code == status
        assert status == 200 or "Content-Type: application/json" in response.text
