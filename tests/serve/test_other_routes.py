"""Other programs' interfaces over the server: their texts are those of chats, and their errors have their shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from draftwood import Pair
from tests.serve.client import MESSAGES, answer, chat, refused
from tests.serve.conftest import Live, make_service, serving

RESPONSES, MESSAGES_ROUTE, OLLAMA = "/v1/responses", "/v1/messages", "/api/chat"
TEXT = "the fox ran"
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "tiny", "input": TEXT, "max_output_tokens": 16, "seed": 1},
    MESSAGES_ROUTE: {"model": "tiny", "messages": MESSAGES, "max_tokens": 16, "seed": 1},
    OLLAMA: {"model": "tiny", "messages": MESSAGES, "options": {"num_predict": 16, "seed": 1}},
    "/api/generate": {"model": "tiny", "prompt": TEXT, "options": {"num_predict": 16, "seed": 1}},
}
ROUTES = list(BODIES)


@pytest.fixture(scope="module")
def api(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1/", api_key="any", max_retries=0) as found:
        yield found


def whole(client: TestClient, path: str, **fields: Any) -> dict[str, Any]:
    return answer(client, {**BODIES[path], "stream": False, **fields}, path=path)


def events(client: TestClient, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream: named ones, or lines of JSON."""
    response = client.post(path, json={**BODIES[path], "stream": True, **fields})
    assert response.status_code == 200, response.text
    if path.startswith("/api/"):
        assert response.headers["content-type"].startswith("application/x-ndjson")
        return [json.loads(line) for line in response.text.splitlines()]
    found = []
    for part in filter(None, response.text.split("\n\n")):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def text_in(found: dict[str, Any]) -> str:
    """The text of an answer, or of an event."""
    if "output" in found:
        return str(found["output"][0]["content"][0]["text"])
    if "content" in found:
        return str(found["content"][0]["text"])
    said = found.get("message", {}).get("content", found.get("response")) if "done" in found else found.get("delta")
    return said if isinstance(said, str) else (said or {}).get("text", "")


@pytest.mark.parametrize("path", ROUTES)
def test_the_text_is_that_of_the_chat_whole_and_as_a_stream(client: TestClient, path: str) -> None:
    wanted = answer(client, chat())
    found = whole(client, path)
    assert text_in(found) == wanted["choices"][0]["message"]["content"]
    assert "".join(map(text_in, events(client, path))) == text_in(found)
    assert found["metrics"]["speculative_decoding"] == wanted["metrics"]["speculative_decoding"]
    plain = whole(client, path, speculative=False)
    assert text_in(plain) == text_in(found)
    assert "metrics" not in plain


@pytest.mark.parametrize("path", ROUTES)
def test_unknown_fields_are_remarked_on_as_in_chats(client: TestClient, path: str) -> None:
    assert whole(client, path, nonsense=1)["warnings"] == ["the server has no field 'nonsense', so it was ignored"]


@pytest.mark.parametrize(("path", "message"), [
    (RESPONSES, lambda error: error["error"]["message"]), (MESSAGES_ROUTE, lambda error: error["error"]["message"]),
    (OLLAMA, lambda error: error["error"]), ("/api/generate", lambda error: error["error"]),
])  # fmt: skip
def test_errors_have_the_shape_of_their_interface(client: TestClient, path: str, message: Any) -> None:
    for body, status, said in (({"model": "none"}, 404, "not here"), ({"temperature": -1}, 400, "temperature")):
        response = client.post(path, json={**BODIES[path], **body})
        assert response.status_code == status
        assert said in message(response.json())
    missing = client.post(path, json={"model": "tiny"})
    assert (missing.status_code, "is missing" in message(missing.json())) == (400, True)
    gone = client.get(path)
    assert (gone.status_code, "there is no" in message(gone.json())) == (405, True)
    if path == MESSAGES_ROUTE:
        error = client.post(path, json={**BODIES[path], "model": "none"}).json()
        assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")


def test_images_and_embeddings_are_refused_by_name(client: TestClient) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
    error = client.post(MESSAGES_ROUTE, json={"messages": [{"role": "user", "content": [image]}]}).json()["error"]
    assert "takes no images" in error["message"]
    part = {"type": "input_image", "image_url": "http://a/b.png"}
    assert "takes no images" in refused(client, {"input": [{"role": "user", "content": [part]}]}, path=RESPONSES)["message"]
    found = client.post(OLLAMA, json={"messages": [{"role": "user", "content": "a", "images": ["YQ=="]}]}).json()
    assert "takes no images" in found["error"]
    for path in ("/api/embed", "/v1/embeddings"):
        assert "make no embeddings" in json.dumps(client.post(path, json={"input": "a"}).json())


# ---- OpenAI's Responses ----


def test_the_openai_client_gets_responses_and_their_streams(api: openai.OpenAI, pair: Pair) -> None:
    wanted = pair.chat([{"role": "system", "content": "a dog"}, *MESSAGES], temperature=1.0, seed=5, max_new_tokens=20)
    settings: Any = {
        "model": "tiny", "input": TEXT, "instructions": "a dog", "max_output_tokens": 20, "extra_body": {"seed": 5},
    }  # fmt: skip
    found = api.responses.create(**settings)
    assert found.output_text == wanted.text
    assert found.usage is not None
    assert (found.status, found.usage.output_tokens) == ("completed", len(wanted.token_ids))
    stream = list(api.responses.create(**settings, stream=True))
    assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == wanted.text
    with api.responses.stream(**settings) as events:
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == wanted.text
    again = api.responses.create(
        model="tiny",
        max_output_tokens=4,
        input=[*found.output, {"role": "user", "content": TEXT}],
    )
    assert again.output_text


def test_a_response_follows_a_schema_and_has_log_probabilities(client: TestClient) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    assert json.loads(text_in(whole(client, RESPONSES, text=form, max_output_tokens=60)))["a"] in ("x", "yy")
    [part] = whole(client, RESPONSES, top_logprobs=2)["output"][0]["content"]
    assert len(part["logprobs"]) == 16
    deltas = [event for event in events(client, RESPONSES, top_logprobs=2) if event["type"].endswith("text.delta")]
    assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]


def test_the_openai_client_raises_its_own_errors(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as found:
        api.responses.create(model="tiny", input="a", previous_response_id="resp_1")
    assert (found.value.param, "stores nothing" in found.value.message) == ("previous_response_id", True)


def test_the_id_of_a_response_is_that_of_its_trace(client: TestClient) -> None:
    found = whole(client, RESPONSES, trace=True)
    assert found["id"].startswith("resp_")
    assert client.get(f"/v1/traces/{found['id']}").json()["traces"][0]["text"] == text_in(found)


# ---- Anthropic's Messages ----


def test_a_stop_sequence_ends_a_message_and_is_named(client: TestClient) -> None:
    text = text_in(whole(client, MESSAGES_ROUTE))
    stops = ["zzz", text[3:5]]
    found = whole(client, MESSAGES_ROUTE, stop_sequences=stops)
    assert text_in(found) == text[: text.index(text[3:5])]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", text[3:5])
    delta = next(
        event["delta"] for event in events(client, MESSAGES_ROUTE, stop_sequences=stops) if event["type"] == "message_delta"
    )
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": text[3:5]}
    assert whole(client, MESSAGES_ROUTE)["stop_reason"] == "max_tokens"


def test_tokens_of_a_message_are_counted(client: TestClient) -> None:
    body = {"messages": MESSAGES, "system": "a dog"}
    counted = client.post(f"{MESSAGES_ROUTE}/count_tokens", json=body).json()
    assert counted == {"input_tokens": whole(client, MESSAGES_ROUTE, system="a dog")["usage"]["input_tokens"]}


def test_the_last_message_is_continued_if_it_is_the_assistants(client: TestClient) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "a dog"}]
    wanted = answer(client, chat(messages=messages, continue_final_message=True))
    assert text_in(whole(client, MESSAGES_ROUTE, messages=messages)) == wanted["choices"][0]["message"]["content"]


def test_a_key_may_be_sent_as_anthropic_clients_do(served: Pair) -> None:
    with serving(make_service(served), keys=("right",)) as client:
        for headers, status in (({"x-api-key": "right"}, 200), ({"x-api-key": "wrong"}, 401), ({}, 401)):
            response = client.post(MESSAGES_ROUTE, json=BODIES[MESSAGES_ROUTE], headers=headers)
            assert response.status_code == status
        assert response.json()["error"]["type"] == "authentication_error"
        assert client.get("/v1/models", headers={"x-api-key": "right", "Authorization": "Bearer wrong"}).status_code == 401


# ---- Ollama ----


def test_ollama_lists_and_shows_the_model(client: TestClient) -> None:
    [tag] = client.get("/api/tags").json()["models"]
    assert tag["name"] == tag["model"] == "tiny"
    shown = client.post("/api/show", json={"model": "tiny:latest"}).json()
    assert shown["model_info"]["general.architecture"] == tag["details"]["family"] == "llama"
    assert shown["model_info"]["llama.context_length"] == 512
    assert "add_generation_prompt" in shown["template"]
    assert client.post("/api/show", json={"model": "other"}).status_code == 404
    assert client.get("/api/version").json() == client.get("/version").json()


def test_a_prompt_is_continued_as_it_is_where_it_is_raw(client: TestClient) -> None:
    wanted = answer(client, {"prompt": TEXT, "max_tokens": 16, "seed": 1})["choices"][0]["text"]
    assert text_in(whole(client, "/api/generate", raw=True)) == wanted
    assert "".join(map(text_in, events(client, "/api/generate", raw=True))) == wanted


def test_a_format_and_an_end_of_ollama(client: TestClient) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": False}
    found = whole(client, OLLAMA, format=schema, options={"num_predict": 60})
    assert json.loads(text_in(found))["a"] in ("x", "yy")
    assert found["done_reason"] == "stop"
    last = events(client, OLLAMA)[-1]
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 16)


# ---- small routes ----


def test_paths_may_have_more_slashes(client: TestClient) -> None:
    models = client.get("/v1/models").json()
    assert client.get("/v1/").json() == client.get("/v1").json() == client.get("/v1/models/").json() == models
    assert client.post("/v1//chat/completions/", json=chat()).json()["choices"] == answer(client, chat())["choices"]


def test_facts_of_the_model_stand_in_the_list(client: TestClient, pair: Pair) -> None:
    [model] = client.get("/v1/models").json()["data"]
    assert model["meta"]["n_vocab"] == pair.target.vocab_size
    assert model["meta"]["n_params"] == sum(one.numel() for one in pair.model.parameters())
    assert model["meta"]["n_ctx_train"] == model["default_generation_settings"]["n_ctx"] == 512


def test_the_page_of_routes_is_made_of_the_document_without_other_hosts(client: TestClient) -> None:
    page = client.get("/docs")
    document = client.get("/openapi.json").json()
    assert all(f"{path}</h2>" in page.text for path in document["paths"])
    assert "<code>max_output_tokens</code>" in page.text
    assert "<script" not in page.text
    assert not re.search("https?:", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(("path", "body"), [
    (RESPONSES, {"input": [{"type": [], "role": {}}]}), (RESPONSES, {"tools": [{"type": {}}]}),
    (RESPONSES, {"text": {"format": 5}}),
    (RESPONSES, {"input": [{"type": "function_call_output", "output": [1]}]}), (RESPONSES, {"tool_choice": {"type": []}}),
    (MESSAGES_ROUTE, {"tool_choice": {"type": []}}), (MESSAGES_ROUTE, {"messages": []}), (MESSAGES_ROUTE, {"system": [5]}),
    (MESSAGES_ROUTE, {"messages": [{"role": "user", "content": [{"type": {}}]}]}), (OLLAMA, {"options": {"messages": 1}}),
    (OLLAMA, {"messages": [{"role": "assistant", "tool_calls": [{"function": 5}]}]}), (OLLAMA, {"format": {"type": 5}}),
])  # fmt: skip
def test_what_has_no_such_shape_is_refused(client: TestClient, path: str, body: dict[str, Any]) -> None:
    response = client.post(path, json={**BODIES[path], **body})
    assert response.status_code == 400, response.text
