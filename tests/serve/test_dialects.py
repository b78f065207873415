"""Other programs' interfaces are translations: from their requests to chats, and from answers to chats to their own."""

import re
from datetime import datetime
from itertools import groupby

import jsonschema
import pytest

from draftwood.serve.dialects.messages import Messages, MessagesBody
from draftwood.serve.dialects.ollama import Ollama, OllamaChatBody, OllamaGenerateBody
from draftwood.serve.dialects.responses import Responses, ResponsesBody
from draftwood.serve.http.errors import ApiError
from tests.serve.client import CHAT, COMPLETIONS, MESSAGES, answer, chat
from tests.serve.conftest import make_service, serving
from tests.serve.interfaces import GENERATE, MESSAGES_ROUTE, OLLAMA, RESPONSES, assembled, error_of, events_of, request, said

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def responses(**body):
    return Responses(ResponsesBody.model_validate({"input": "Hello", **body}))


def messages(**body):
    return Messages(MessagesBody.model_validate({"messages": [{"role": "user", "content": "Hello"}], **body}))


def ollama(**body):
    return Ollama(OllamaChatBody.model_validate({"messages": [{"role": "user", "content": "Hello"}], **body}))


def generate(chats=True, **body):
    return Ollama(OllamaGenerateBody.model_validate({"prompt": "Hello", **body}), chats=chats)


# ---- requests ----


def test_the_input_of_a_response_becomes_the_messages_of_a_chat():
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


def test_the_blocks_of_a_message_become_the_messages_of_a_chat():
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
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
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


@pytest.mark.parametrize(("made", "wanted"), [
    (lambda: responses(
        model="m", max_output_tokens=5, temperature=0.5, seed=3, tool_choice={"type": "function", "name": "f"},
        tools=[{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}],
        text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}, "verbosity": "low"}, stream=True,
        reasoning={"effort": "low"}, include=["message.output_text.logprobs"], background=False, truncation="disabled",
    ), {
        "model": "m", "max_tokens": 5, "temperature": 0.5, "seed": 3,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, "verbosity": "low",
        "stream": True, "reasoning_effort": "low", "logprobs": True,
    }),
    (lambda: messages(
        max_tokens=5, stop_sequences=["x"], top_k=4, tools=[{"name": "f", "input_schema": SCHEMA}],
        metadata={"user_id": "u"}, tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"}, output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    ), {
        "max_tokens": 5, "stop": ["x"], "top_k": 4, "metadata": {"user_id": "u"}, "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    }),
], ids=["response", "message"])  # fmt: skip
def test_the_settings_of_a_request_become_those_of_a_chat(made, wanted):
    assert {name: value for name, value in made().chat.items() if name != "messages"} == wanted


def test_the_older_name_of_an_output_format_is_taken():
    form = {"type": "json_schema", "schema": SCHEMA}
    wanted = messages(output_config={"format": form}).chat["response_format"]
    assert messages(output_format=form).chat["response_format"] == wanted


def test_a_chat_of_ollama_becomes_a_chat():
    history = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "thinking": "I call.",
         "tool_calls": [{"function": {"name": "time"}}, {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "content": "cold", "tool_name": "weather"}, {"role": "tool", "content": "late"},
    ]  # fmt: skip
    options = {"num_predict": 5, "temperature": 0.5, "stop": ["x"], "num_ctx": 4096, "min_p": 0.1}
    chat = ollama(model="m:latest", messages=history, options=options, format=SCHEMA, keep_alive="5m", think=True).chat
    functions = {"name": "time", "arguments": {}}, {"name": "weather", "arguments": {"city": "Oslo"}}
    calls = [{"id": f"call_1_{i}", "type": "function", "function": one} for i, one in enumerate(functions)]
    assert chat.pop("messages") == [
        history[0],
        {"role": "assistant", "content": "", "reasoning_content": "I call.", "tool_calls": calls},
        {"role": "tool", "content": "cold", "name": "weather", "tool_call_id": "call_1_1"},
        {"role": "tool", "content": "late", "tool_call_id": "call_1_0"},
    ]
    assert chat == {
        "model": "m:latest", "max_tokens": 5, "temperature": 0.5, "stop": ["x"], "min_p": 0.1, "stream": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        "chat_template_kwargs": {"enable_thinking": True},
    }  # fmt: skip


def test_a_prompt_of_ollama_is_a_chat_or_continued_as_it_is():
    made = generate(system="Be brief.", stream=False)
    roles = [("system", "Be brief."), ("user", "Hello")]
    assert [(one["role"], one["content"]) for one in made.chat["messages"]] == roles
    for plain in (generate(raw=True, think=False), generate(chats=False)):
        assert "chat_template_kwargs" not in plain.chat
        assert (plain.path, plain.chat["prompt"], plain.chat["max_tokens"]) == ("/v1/completions", "Hello", -1)
    assert generate(raw=True, options={"num_predict": 5}).chat["max_tokens"] == 5
    for made in (generate(raw=True, options={"num_predict": -2}), ollama(options={"num_predict": -3.0})):
        assert made.chat["max_tokens"] == -1  # which fills the context


def test_a_penalty_of_ollama_is_taken_where_it_counts_the_whole_text():
    assert ollama(options={"repeat_penalty": 1.1, "repeat_last_n": -1}).chat["repetition_penalty"] == 1.1
    assert ollama(options={"repeat_penalty": 1, "repeat_last_n": 64}).chat["repeat_last_n"] == 64  # a remark names it
    for more in ({}, {"repeat_last_n": 64}, {"repeat_last_n": -1, "repetition_penalty": 1.2}):
        with pytest.raises(ApiError, match="a penalty here counts the whole text: send repeat_last_n -1"):
            ollama(options={"repeat_penalty": 1.1, **more})


# ---- over HTTP ----

TEXT = "the fox ran"
BODIES = {path: request(path, size=16, seed=1) for path in (RESPONSES, MESSAGES_ROUTE, OLLAMA, GENERATE)}
ROUTES = list(BODIES)


def whole(client, path, **fields):
    return answer(client, {**BODIES[path], "stream": False, **fields}, path=path)


def events(client, path, **fields):
    return events_of(client, path, {**BODIES[path], **fields})


@pytest.mark.parametrize("path", ROUTES)
def test_the_text_is_that_of_the_chat_whole_and_as_a_stream(client, path):
    wanted = answer(client, chat())
    found = whole(client, path)
    assert said(found).text == wanted["choices"][0]["message"]["content"]
    assert said(assembled(events(client, path))).text == said(found).text
    assert found["metrics"]["speculative_decoding"] == wanted["metrics"]["speculative_decoding"]
    plain = whole(client, path, speculative=False)
    assert said(plain).text == said(found).text
    assert "metrics" not in plain


def test_the_events_of_a_text_come_in_their_order(client):
    orders = {
        RESPONSES: "created in_progress output_item.added content_part.added output_text.delta output_text.done "
        "content_part.done output_item.done incomplete",
        MESSAGES_ROUTE: "message_start content_block_start content_block_delta content_block_stop message_delta "
        "message_stop",
    }
    for path, order in orders.items():
        kinds = [event["type"].removeprefix("response.") for event in events(client, path)]
        assert [kind for kind, _ in groupby(kinds)] == order.split()


def of_length(path, text, size):
    """A request for the likeliest text, of this many tokens unless they do not fit."""
    return {"ignore_eos": True, "temperature": 0, **request(path, text, size)}


def end_of(found):
    """Why an answer ended, and the tokens of prompt and text."""
    if "eval_count" in found:
        return found["done_reason"], found["prompt_eval_count"] + found["eval_count"]
    usage = found["usage"]
    used = usage.get("total_tokens") or sum(usage[f"{name}_tokens"] for name in ("input", "output", "cache_read_input"))
    reason = found.get("stop_reason") or (found.get("incomplete_details") or {}).get("reason")
    return reason or found["choices"][0]["finish_reason"], used


@pytest.fixture(scope="module")
def short(served):
    with serving(make_service(served, max_length=64)) as found:
        yield found


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, *ROUTES])
def test_a_text_is_cut_to_what_fits_and_a_prompt_that_does_not_is_refused_with_both_numbers(short, path):
    client, longest = short, short.get("/v1/models").json()["data"][0]["max_model_len"]
    for size in (32000, 32000.0, None, *([] if path in (MESSAGES_ROUTE, RESPONSES) else [-1])):
        found = answer(client, of_length(path, TEXT, size) | {"stream": False}, path=path)
        if (path, size) == (COMPLETIONS, None):
            assert found["usage"]["completion_tokens"] == 16
        else:
            assert end_of(found) in [(reason, longest) for reason in ("length", "max_tokens", "max_output_tokens")]
        said = [remark for remark in found.get("warnings", ()) if "fit after the prompt" in remark]
        assert len(said) == (size in (32000, 32000.0)), found
    for text in ("the fox ran " * 40, "the fox ran " * 400):
        response = client.post(path, json=of_length(path, text, 5))
        error = response.json()["error"]
        count = re.match(rf"prompt is too long: (\d+) tokens > {longest - 1} maximum", error_of(response))
        assert (response.status_code, count is None) == (400, False), response.text
        assert int(count[1]) >= longest
        if path not in (MESSAGES_ROUTE, OLLAMA, GENERATE):
            field = {CHAT: "messages", RESPONSES: "input", COMPLETIONS: "prompt"}[path]
            assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert answer(client, of_length(path, TEXT, 2) | {"stream": False}, path=path)


@pytest.mark.parametrize("path", ROUTES)
def test_unknown_fields_are_remarked_on_as_in_chats(client, path):
    assert whole(client, path, nonsense=1)["warnings"] == ["the server has no field 'nonsense', so it was ignored"]
    options = {"stream_options": {"continuous_usage_stats": True}}
    assert path == RESPONSES or client.post(path, json={**BODIES[path], **options}).status_code == 400


@pytest.mark.parametrize("path", [CHAT, *ROUTES])
def test_errors_have_the_shape_of_their_interface_which_the_document_describes(client, path):
    document = client.get("/openapi.json").json()
    content = document["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]
    schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]

    def check(response, status, said):
        jsonschema.validate(response.json(), schema)
        assert (response.status_code, said in error_of(response)) == (status, True), response.text
        assert isinstance(response.json()["request_id"], str)

    body = BODIES.get(path) or chat()
    check(client.post(path, json={**body, "model": "none"}), 404, "not here")
    check(client.post(path, json={**body, "temperature": -1}), 400, "temperature")
    check(client.get(path), 405, "there is no")
    if path in (CHAT, RESPONSES, MESSAGES_ROUTE):
        check(client.post(path, json={"model": "tiny"}), 400, "is missing")
    if path in (OLLAMA, GENERATE):
        check(client.post(path, json={**body, "options": {"num_predict": "x"}}), 400, "num_predict is 'x'")
    if path == MESSAGES_ROUTE:
        error = client.post(path, json={**body, "model": "none"}).json()
        assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")
        check(client.post(path, json={**body, "thread": "a"}), 400, "thread")


@pytest.mark.parametrize("path", ["/api/embed", "/v1/embeddings"])
def test_embeddings_are_refused_by_name(client, path):
    assert "make no embeddings" in client.post(path, json={"input": "a"}).text


# ---- OpenAI's Responses ----


def test_the_openai_client_gets_responses_and_their_streams(api, pair):
    wanted = pair.chat([{"role": "system", "content": "a dog"}, *MESSAGES], temperature=1.0, seed=5, max_new_tokens=20)
    settings = {
        "model": "tiny", "input": TEXT, "instructions": "a dog", "max_output_tokens": 20, "extra_body": {"seed": 5},
    }  # fmt: skip
    found = api.responses.create(**settings)
    assert found.output_text == wanted.text
    assert found.usage is not None
    assert (found.status, found.usage.output_tokens) == ("completed", len(wanted.token_ids))
    assert (found.temperature, found.top_p, found.completed_at) == (1, 1, pytest.approx(found.created_at, abs=200))
    stream = list(api.responses.create(**settings, stream=True))
    assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == wanted.text
    with api.responses.stream(**settings) as events:
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == wanted.text
    again = api.responses.create(model="tiny", max_output_tokens=4, input=[*found.output, {"role": "user", "content": TEXT}])
    assert again.output_text


def test_a_response_has_log_probabilities(client):
    [part] = whole(client, RESPONSES, top_logprobs=2)["output"][0]["content"]
    assert len(part["logprobs"]) == 16
    deltas = [event for event in events(client, RESPONSES, top_logprobs=2) if event["type"].endswith("text.delta")]
    assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]


def test_the_id_of_a_response_is_that_of_its_trace(client):
    found = whole(client, RESPONSES, trace=True)
    assert found["id"].startswith("resp_")
    assert client.get(f"/v1/traces/{found['id']}").json()["traces"][0]["text"] == said(found).text


# ---- Anthropic's Messages ----


def test_a_stop_sequence_ends_a_message_and_is_named(client):
    text = said(whole(client, MESSAGES_ROUTE)).text
    stops = ["zzz", text[3:5]]
    found = whole(client, MESSAGES_ROUTE, stop_sequences=stops)
    assert said(found).text == text[: text.index(text[3:5])]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", text[3:5])
    delta = next(
        event["delta"] for event in events(client, MESSAGES_ROUTE, stop_sequences=stops) if event["type"] == "message_delta"
    )
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": text[3:5]}
    assert whole(client, MESSAGES_ROUTE)["stop_reason"] == "max_tokens"


def test_tokens_of_a_prompt_are_counted(client):
    body = {"messages": MESSAGES, "system": "a dog"}
    counted = client.post(f"{MESSAGES_ROUTE}/count_tokens", json=body).json()
    assert counted == {"input_tokens": whole(client, MESSAGES_ROUTE, system="a dog")["usage"]["input_tokens"]}
    counted = client.post(f"{RESPONSES}/input_tokens", json={**BODIES[RESPONSES], "instructions": "a dog"}).json()
    used = whole(client, RESPONSES, instructions="a dog")["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": used}
    refused = client.post(f"{RESPONSES}/input_tokens", json={"input": "a dog " * 90_000})
    assert refused.json()["error"]["param"] == "input"


# ---- Ollama ----


def test_a_prompt_is_continued_as_it_is_where_it_is_raw(client):
    wanted = answer(client, {"prompt": TEXT, "max_tokens": 16, "seed": 1})["choices"][0]["text"]
    for more, text in (({}, wanted), ({"echo": True}, TEXT + wanted)):
        assert said(whole(client, GENERATE, raw=True, **more)).text == text
        assert said(assembled(events(client, GENERATE, raw=True, **more))).text == text


def test_texts_of_ollama_have_their_log_probabilities(client):
    prompt = answer(client, {"prompt": TEXT, "max_tokens": 16, "seed": 1, "logprobs": 2})["choices"][0]["logprobs"]
    said = answer(client, chat(logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]["content"]
    for path, more, wanted in (
        (GENERATE, {"raw": True}, prompt["token_logprobs"]), (OLLAMA, {}, [entry["logprob"] for entry in said])
    ):  # fmt: skip
        found = whole(client, path, logprobs=True, top_logprobs=2, **more)["logprobs"]
        assert [entry["logprob"] for entry in found] == wanted
        assert all(len(entry["top_logprobs"]) == 2 for entry in found)
        lines = events(client, path, logprobs=True, top_logprobs=2, **more)
        assert [entry for line in lines for entry in line.get("logprobs", ())] == found
        error = client.post(path, json={**BODIES[path], "top_logprobs": 2, **more}).json()["error"]
        assert "belongs to logprobs" in error


# ---- small routes ----


def test_paths_may_have_more_slashes(client):
    models = client.get("/v1/models").json()
    assert client.get("/api/version").json() == client.get("/version").json()
    assert client.get("/v1/").json() == client.get("/v1").json() == client.get("/v1/models/").json() == models
    assert client.post("/v1//chat/completions/", json=chat()).json()["choices"] == answer(client, chat())["choices"]


@pytest.mark.parametrize(("path", "name", "given"), [
    (RESPONSES, "reasoning.effort", {"reasoning": {"effort": "low"}}),
    (MESSAGES_ROUTE, "output_config.effort", {"output_config": {"effort": "low"}, "max_tokens": 4}),
    (OLLAMA, "think", {"think": "low"}),
])  # fmt: skip
def test_an_effort_that_is_refused_has_the_name_of_its_interface(client, path, name, given):
    response = client.post(path, json={**request(path), **given, "chat_template_kwargs": {"reasoning_effort": "high"}})
    error = response.json()["error"]
    said = error if isinstance(error, str) else error["message"]
    assert (response.status_code, said.startswith(f"{name} is 'low'")) == (400, True), said
    assert path != RESPONSES or error["param"] == name


@pytest.mark.parametrize(("method", "path", "said"), [
    ("POST", "/chat/completions", "but there is /v1/chat/completions: change the client's base URL"),
    ("POST", "/completions", "but there is /v1/completions:"),
    ("GET", "/models", "but there is /v1/models:"),
    ("POST", "/v1/v1/messages", "but there is /v1/messages:"),
    ("POST", "/v1//api/chat/", "but there is /api/chat:"),
    ("POST", "/v1/chat/completions/chat/completions", "but there is /v1/chat/completions:"),
    ("GET", "/v1/chat/completions", ": send POST"),
    ("POST", "/v1/models", ": send GET or HEAD"),
    ("GET", "/v1/messages/batches", ": GET /openapi.json lists what there is"),
    ("POST", "/v1/rerank", ": GET /openapi.json lists what there is"),
])  # fmt: skip
def test_a_path_that_is_joined_wrongly_is_answered_with_the_right_one(client, method, path, said):
    response = client.request(method, path, json={})
    assert response.status_code in (404, 405)
    assert said in response.text


def test_facts_of_the_model_stand_in_the_list(client, pair):
    [model] = client.get("/v1/models").json()["data"]
    assert model["meta"]["n_vocab"] == pair.target.vocab_size
    assert model["meta"]["n_params"] == sum(one.numel() for one in pair.model.parameters())
    assert model["meta"]["n_ctx_train"] == model["default_generation_settings"]["n_ctx"] == 512


def test_models_are_listed_for_clients_of_anthropic_too(client):
    page = client.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "tiny", "tiny")
    [model] = page["data"]
    assert model == client.get("/v1/models/tiny").json()
    assert (model["type"], model["display_name"], model["lifecycle"]) == ("model", "tiny", "active")
    assert datetime.fromisoformat(model["created_at"]).timestamp() == model["created"]


def test_the_page_of_routes_is_made_of_the_document_without_other_hosts(client):
    page = client.get("/docs")
    document = client.get("/openapi.json").json()
    assert all(f"{path}</h2>" in page.text for path in document["paths"])
    assert "<code>max_output_tokens</code>" in page.text
    assert "<script" not in page.text
    assert not re.search("https?:", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]
