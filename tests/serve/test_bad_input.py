"""Whatever is sent: an answer, or an error in OpenAI's shape that names what is wrong; and the server goes on."""

import asyncio
import json
import re
import socket
import sys
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner
from pydantic import ValidationError
from starlette.requests import Request

from draftwood.cli import main
from draftwood.core.errors import ConfigError
from draftwood.serve.http.errors import ApiError
from draftwood.serve.http.settings import ServeOptions, read_keys
from draftwood.serve.openai import bodies
from draftwood.serve.openai.schemas import CompletionBody
from draftwood.serve.run import listen
from tests.serve import shapes
from tests.serve.client import CHAT, COMPLETIONS, MESSAGES, answer, chat, completion, metric, refused
from tests.serve.conftest import loaded, make_service, serving

JSON = {"Content-Type": "application/json"}
KEYS = ("right",)


@pytest.fixture(scope="module")
def client(folders):
    with serving(make_service(loaded(folders), max_length=96)) as found:
        yield found
        assert metric(found, "num_requests_running") == metric(found, "num_requests_waiting") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nonsense", b'{"model": "tiny",}', b"[]", b"null", b"3", b'"text"', b"\xff\xfe", b"\0", b'{"a": 1} {}',
        b"[" * 10_000, b'{"a":' * 10_000, b"[" * 10_000 + b"]" * 10_000, b'{"model": ' + b"9" * 100_000 + b"}",
        b'{"temperature": NaN}', b'{"temperature": Infinity}',
        b'{"model": "tiny", "model": "tiny", "prompt": "a"}', b'{"prompt": "a\\ud800"}', b'{"prompt": "a", "\\udc00": 1}',
        b'{"prompt": ["a", "\\ud800"]}', b'{"a":' * 64 + b"[]" + b"}" * 64,
        b'{"logit_bias": {%s}}' % b", ".join(b'"%d": 0' % i for i in range(4097)),
    ],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
def test_what_is_no_json_object_is_refused(client, body):
    assert refused(client, body)["code"] == "invalid_json"


def test_a_body_may_have_some_levels_and_brackets_in_texts_are_none(client):
    schema = {"const": "[" * 99 + '\\"{'}
    for _ in range(60):
        schema = {"not": schema}
    assert answer(client, completion(prompt="{" * 20 + '"', metadata=schema, max_tokens=1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_tokens", value) for value in (0, -2, 1.5, "3", True, [], 10**30, 2**31)),
        *(("temperature", value) for value in (-1, "1", True, 101, 1e-30, [], {}, 10**400)),
        *(("top_p", value) for value in (0, 1.1, -1, "x")),
        *(("top_k", value) for value in (-2, 1.5, 10**20)),
        *(("min_p", value) for value in (-0.1, 2)),
        *(("n", value) for value in (0, -1, 129, 10**10, 1.5, "2")),
        *(("seed", value) for value in (-2, 2**63, 1.5, "1")),
        *(("stop", value) for value in ("", [""], [1], {}, ["a"] * 65)),
        *(("stop_token_ids", value) for value in ([-1], [10**6], ["a"], 3)),
        *(
            ("logit_bias", value)
            for value in ([1], [[1]], [[1, True]], [["a", 1]], [[1, 101]], [[1, 1], [1, 2]], [[-1, 1]], [[99999, False]])
        ),
        *(("logit_bias", value) for value in ({"a": 1}, {"1": "x"}, {"-1": 1}, {"99999": 1}, {"1": 101}, {"²": 1})),
        *(("presence_penalty", value) for value in ("x", 1e300, -2.1)),
        *(("repetition_penalty", value) for value in (0, -1, 1e-38, 101)),
        *(("stream", value) for value in ("yes", 1)),
        *(("speculative", value) for value in (1, "no", {"nodes": 0}, [])),
        *(("prompt", value) for value in (None, 1, [], [1, "a"], [-1], [99999], ["a", [1]], {}, [True], "a" * 5000)),
        *(("model", value) for value in (3, [])),
        *(("logprobs", value) for value in (-1, 21, True, False, "1")),
        *(("min_tokens", value) for value in (-1, "1")),
        ("stream_options", {"include_usage": True}),
        ("tools", [{}]),
    ],
)
def test_values_that_cannot_be_honoured_are_refused_by_name(client, field, value):
    error = refused(client, completion(**{field: value}))
    assert field in (error["param"] or "") or error["param"] in ("max_tokens", None)
    assert field in error["message"] or error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "messages",
    [
        [], None, "text", [None], [{}], [{"role": "user", "content": None}], [{"role": "robot", "content": "a"}],
        [{"role": "user", "content": 3}], [{"role": "assistant", "content": "a", "tool_calls": [{}]}],
        [*MESSAGES, {"role": "user", "content": "a" * 5000}],
    ],
)  # fmt: skip
def test_messages_that_are_none_are_refused(client, messages):
    refused(client, chat(messages=messages))


@pytest.mark.parametrize("value", [0, 0.0, True])
def test_what_can_only_be_false_is_no_number_that_equals_it(client, value):
    error = refused(client, completion(stream=True, stream_options={"include_obfuscation": value}))
    assert error["message"].startswith(f"stream_options.include_obfuscation is {value}: ")


def test_settings_that_exclude_each_other_are_refused(client):
    refused(client, chat(max_completion_tokens=3))
    refused(client, completion(min_tokens=2, stop="a"))
    refused(client, completion(seed=2**63 - 1, n=2))


@pytest.mark.parametrize(("body", "param", "count"), [
    (completion(n=128), "n", 128), (chat(n=128), "n", 128), (completion(prompt=["a"] * 100), "prompt", 100),
    (completion(prompt=["a"] * 40, n=2), "n", 80),
])  # fmt: skip
def test_more_texts_than_the_server_holds_are_refused_by_the_field_that_wants_them(client, body, param, count):
    error = refused(client, body)
    assert (error["code"], error["param"]) == ("invalid_value", param)
    assert f"wants {count} texts, but this server holds at most 72" in error["message"]


@pytest.mark.parametrize(("field", "value", "said"), [
    ("stop", ["a"] * 65, "at most 64 items"), ("stop", [1], "stop.0 is 1: "), ("prompt", [1, "a"], "prompt.1 is 'a': "),
    ("prompt", [-1], "prompt.0 is -1: input should be greater"), ("logit_bias", {"5": "a"}, "logit_bias.5 is 'a': "),
    ("logit_bias", [["a", 1]], "logit_bias.0.0 is 'a': "),
])  # fmt: skip
def test_of_the_forms_of_a_field_the_error_is_about_the_one_that_came(client, field, value, said):
    error = refused(client, completion(**{field: value}))
    assert (error["param"], said in error["message"]) == (field, True), error


@pytest.mark.parametrize(("value", "said"), [({"a": 1}, "{'a': 1.0}"), ([[1]], "[1]")])
def test_a_wrong_bias_is_shown_as_it_came(client, value, said):
    assert refused(client, completion(logit_bias=value))["message"].startswith(f"logit_bias holds {said}, but the model")


def test_requests_of_many_parts_are_refused_before_work_is_done(client):
    assert "but the model knows" in refused(client, completion(logit_bias={str(i): 0 for i in range(4096)}))["message"]
    assert refused(client, completion(prompt=[1] * 300_000 + ["a"]))["param"] == "prompt"
    assert "10000 texts" in refused(client, completion(prompt=["a"] * 5000, n=2))["message"]
    long = [{"role": "user", "content": "the fox ran"} for _ in range(1000)]
    assert "too long" in refused(client, chat(messages=long))["message"]
    with pytest.raises(ValidationError) as found:
        CompletionBody.model_validate(completion(prompt=[[1]] * 999 + ["a"]))
    assert found.value.error_count() < 10, "validation stops at the first wrong value"


def test_nul_and_every_other_character_is_text(client):
    for text in ("\0", "a\0b", "\u202e", "\U0001f600", "<end>", "\ufffe"):
        assert answer(client, completion(prompt=text, max_tokens=2, stop="\0"))
        assert answer(client, chat(messages=[{"role": "user", "content": text}], max_tokens=2))


def test_a_text_that_is_far_too_long_is_refused_by_its_beginning(client):
    long = "the fox ran to the hill. " * 150_000
    for body in (completion(prompt=long), chat(messages=[{"role": "user", "content": long}])):
        error = refused(client, body)
        assert error["code"] == "context_length_exceeded"
        assert re.match(r"prompt is too long: \d+ tokens > 95 maximum, in its first 1152 characters", error["message"])


def test_a_body_that_does_not_come_is_refused(client, monkeypatch):
    async def never(self):
        yield b"{"
        await asyncio.sleep(3600)

    monkeypatch.setattr("draftwood.serve.openai.bodies.BODY_SECONDS", 0.01)
    monkeypatch.setattr(Request, "stream", never)
    assert refused(client, b"{}", 408)["code"] == "timeout"


def test_other_types_of_content_paths_and_methods_are_refused(client):
    response = client.post(COMPLETIONS, content=json.dumps(completion()), headers={"Content-Type": "text/plain"})
    assert response.status_code == 400
    shapes.check_error(response.json())
    for method, path, status in (
        ("GET", "/nothing", 404), ("GET", COMPLETIONS, 405), ("DELETE", "/v1/models", 405), ("OPTIONS", CHAT, 405),
        ("GET", "/v1/models/other", 404), ("GET", "/v1/models/a/b", 404),
    ):  # fmt: skip
        response = client.request(method, path)
        assert response.status_code == status
        shapes.check_error(response.json())
    assert "access-control-allow-origin" not in client.get("/health", headers={"Origin": "http://a"}).headers


# ---- keys ----


def test_every_route_but_health_wants_a_key(folders, caplog):
    keys = ("first-key", "second-key")
    with caplog.at_level(0), serving(make_service(loaded(folders)), keys) as client:
        for key in keys:
            for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
                assert client.get("/v1/models", headers=headers).status_code == 200
        wrong = ["", "Bearer", "Bearer ", "Bearer first-ke", "Bearer first-key2", "Basic first-key", "first-key", "Bearer é"]
        for header in wrong:
            for method, path in (("GET", "/v1/models"), ("POST", COMPLETIONS), ("GET", "/metrics"), ("GET", "/nothing")):
                response = client.request(method, path, headers={b"Authorization": header.encode()})
                assert response.status_code == 401
                shapes.check_error(response.json())
                assert "first-key" not in response.text
        for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": "first-key", "Authorization": "Bearer wrong"}):
            assert client.get("/v1/models", headers=headers).status_code == 401
        assert client.get("/v1/messages").json()["error"]["type"] == "authentication_error"
        assert client.get("/health").status_code == 200
    assert "first-key" not in caplog.text


def test_a_host_that_others_reach_needs_a_key(tmp_path):
    for host in ("0.0.0.0", "::", "192.168.0.4", "example.org"):
        with pytest.raises(ConfigError, match="--api-key-file"):
            ServeOptions(host=host)
        ServeOptions(host=host, no_key=True)
        ServeOptions(host=host, api_key_file=tmp_path / "keys")
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        ServeOptions(host=host)
    path = tmp_path / "keys"
    path.write_text("one\n\n two \n")
    assert read_keys(path) == ("one", "two")
    for text in ("", "\n \n", "ké\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="key"):
            read_keys(path)


OUT_OF_RANGE = [
    {"port": 70000}, {"port": -1}, {"max_rows": 0}, {"max_queue": -1}, {"drain": -1.0}, {"name": " "}, {"max_length": 1},
    {"no_key": True, "api_key_file": Path("a")}, {"name": "a"}, {"name": ("a", " ")}, {"unknown_fields": "other"},
    {"log": "xml"}, *({name: value} for name in ("max_memory", "prefix_memory") for value in (0, -1.0, float("nan"))),
]  # fmt: skip


@pytest.mark.parametrize("options", OUT_OF_RANGE)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options)).replace("_", "[_-]")):
        ServeOptions(**options)


def test_the_command_refuses_what_it_cannot_serve(monkeypatch):
    def run(*arguments):
        result = CliRunner().invoke(main, ["serve", *arguments])
        assert result.exit_code == 2
        return result.output

    assert "--api-key-file" in run("--host", "0.0.0.0")
    assert "beta" in run("--beta", "3")  # changes texts, and is for temperature 0
    assert "verifier" in run("--verifier", "greedy")
    monkeypatch.setitem(sys.modules, "draftwood.serve.run", None)
    assert 'pip install ".[serve]"' in run()


def test_a_port_in_use_is_refused():
    with listen("127.0.0.1", 0) as found:
        port = found.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {port}: .* give another --host or --port"):
            listen("127.0.0.1", port)


# ---- a large body, over a connection of its own: a client that sends it sees why it is refused ----

KEY = {"Authorization": "Bearer right"}
LARGE = 24 << 20  # bytes: more than the buffers of a connection hold

REFUSALS = {
    "too large": (COMPLETIONS, JSON | KEY, 413),
    "without a key": (COMPLETIONS, JSON, 401),
    "another type": (COMPLETIONS, {"Content-Type": "text/plain"} | KEY, 400),
    "no such path": ("/v1/embeddings", JSON | KEY, 404),
    "another method": ("/metrics", JSON | KEY, 405),
}


def post(live, path, headers, *, announced=True):
    """The answer that an asynchronous client sees: it gives up where its connection is reset."""

    async def parts():
        for _ in range(LARGE // 65536):
            yield b" " * 65536

    async def send():
        async with httpx2.AsyncClient(timeout=60) as client:
            return await client.post(f"{live.url}{path}", content=b" " * LARGE if announced else parts(), headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
@pytest.mark.parametrize(("path", "headers", "status"), REFUSALS.values(), ids=REFUSALS.keys())
def test_the_answer_is_seen(live, path, headers, status, announced):
    response = post(live, path, headers, announced=announced)
    assert response.status_code == status
    shapes.check_error(response.json())
    assert status != 413 or response.json()["error"]["code"] == "request_too_large"


def test_control_where_the_connection_is_closed_clients_see_no_answer(live, monkeypatch):
    closing = ApiError(413, "too large", headers={"Connection": "close"})
    monkeypatch.setattr(bodies, "_too_large", lambda: closing)
    with pytest.raises(httpx2.HTTPError):
        post(live, COMPLETIONS, JSON | KEY)


@pytest.mark.parametrize(("headers", "status"), [
    (["Content-Type: application/json", f"Content-Length: {2 * bodies.MAX_BODY}", "Expect: 100-continue"], 413),
    (["Content-Type: text/plain", "Content-Length: 1000"], 400),
])  # fmt: skip
def test_a_client_that_sends_no_body_gets_its_answer_at_once(live, headers, status):
    lines = [f"POST {COMPLETIONS} HTTP/1.1", "Host: x", "Authorization: Bearer right", *headers, "", ""]
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert f" {status} ".encode() in connection.recv(4096).split(b"\r\n")[0]
