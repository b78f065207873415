"""The benchmarks of the server: what they send, what they count, and what they say of it."""

import asyncio
import json
import sys
from pathlib import Path

import httpx2
import pytest

from benchmarks.serving import fuzz, load, prefix, soak
from benchmarks.serving.bodies import mixed
from benchmarks.serving.client import Answer, answer, client_of, closed_loop
from benchmarks.serving.config import LoadConfig, PrefixConfig, Served, SoakConfig
from benchmarks.serving.outcome import holds
from benchmarks.serving.right import RIGHT, valid
from benchmarks.serving.routes import ROUTES, chatting
from benchmarks.serving.servers import Server, launched, running
from draftwood.core.errors import ConfigError
from tests.benchmarks.tiny import call
from tests.serve.conftest import DRAWS, live_server, loaded, make_service
from tests.tiny_chat import save_chat


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Models that read long prompts: tools are described in them."""
    folder, long = tmp_path_factory.mktemp("long"), {"max_position_embeddings": 16384}
    return loaded(
        (save_chat(folder / "target", generation=DRAWS, **long), save_chat(folder / "draft", layers=1, seed=1, **long))
    )


@pytest.fixture(scope="module")
def live(pair):
    with live_server(make_service(pair)) as found:
        yield found


OPENAI_ERROR = '{"error": {"message": "a", "type": "b", "param": null, "code": null}}'


def nothing():
    pass


@pytest.fixture
def served(live, tmp_path):
    return Served(url=live.url, output=tmp_path, dtype="float32")


# ---- soak ----


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"server": {"ended": 39}}, 2),  # a text that came, and the server does not know
        ({"server": {"ended": 40, "cancelled": 4}}, 1),  # one that began and was neither ended nor cancelled
        ({"server": {"ended": 40, "cancelled": 10, "failed": 1}}, 2),
        ({"fates": {"complete": 39, "left_stream": 5, "left_whole": 5}}, 2),  # one without a fate
        ({"left": [0, 1]}, 1),
        ({"memory": [100, 103]}, 1),
    ],
)
def test_control_a_soak_notices_what_was_lost(change, broken):
    config = SoakConfig(requests=50)
    right = {
        "fates": {"complete": 40, "left_stream": 5, "left_whole": 5}, "server": {"ended": 40, "cancelled": 10},
        "left": [0, 0], "memory": [100, 101],
    }  # fmt: skip
    assert all(check.holds for check in soak.checks(right, config))
    assert sum(not check.holds for check in soak.checks(right | change, config)) == broken


@pytest.mark.parametrize("stream", [False, True])
def test_every_route_of_a_soak_says_when_its_text_is_complete(live, stream):
    server = running(live.url)
    fields = {"stream": stream, "speculative": True, "ignore_eos": True}

    async def ends():
        async with client_of(server) as client:
            body = mixed(0, 0, server.model, 4) | {"prompt": "the fox", "max_tokens": 2} | fields
            got = [await answer(client, route.translated(body), route.path) for route in ROUTES]
            got.append(await answer(client, {"messages": []}, "/v1/messages"))
            return [(one.complete, one.finish_reason or one.error) for one in got]

    *complete, refused = asyncio.run(ends())
    assert complete == [
        (True, end) for end in ("length", "length", "length", "incomplete", "max_tokens", "length", "length")
    ]
    assert not refused[0]
    assert "messages" in str(refused[1])


def test_the_bundled_pair_gets_a_chat_template(tmp_path):
    with chatting(Served(output=tmp_path)) as made:
        assert made.target
        assert (Path(made.target) / "chat_template.jinja").is_file()
        assert (Path(made.target) / "model.safetensors").is_file()
    assert not Path(made.target).exists()


# ---- the prefix cache ----


def test_second_turns_copy_the_first_one_and_texts_without_the_cache_are_compared(served):
    config = PrefixConfig(tokens=64, repeats=2, max_new_tokens=8, most=1000.0)
    found = prefix.run(served, config, nothing)
    assert holds(found), found["checks"]
    assert [sorted(one["milliseconds"]) for one in found["repeats"]] == [["new", "second"]] * 2
    for one in found["repeats"]:
        read = one["prompt_tokens"]["second"] - one["cached_tokens"]["second"]
        assert 0 <= read - one["prompt_tokens"]["new"] <= 16
    assert "÷ new chat" in prefix.markdown(found)
    parts = ("milliseconds", "prompt_tokens", "cached_tokens", "texts")
    off = [{**one, **{part: {**one[part], **dict.fromkeys(("off", "restart"), one[part]["second"])} for part in parts}}
           for one in found["repeats"]]  # fmt: skip
    wrong = [{**one, "silence": 11.0, "texts": {**one["texts"], "off": "another"}} for one in off]
    assert [check.holds for check in prefix.checks(off, config)] == [True] * 6 + [False]
    assert [check.holds for check in prefix.checks(wrong, config)] == [True, True, True, False, True, False, False]
    lost = [{**one, "cached_tokens": {**one["cached_tokens"], "restart": 0}} for one in off]
    assert not prefix.checks(lost, config)[4].holds
    slow = [{**one, "milliseconds": {"second": 2.0, "new": 1.0}} for one in found["repeats"]]
    assert not prefix.checks(slow, PrefixConfig(tokens=64, most=1.3))[0].holds


# ---- fuzz ----


def test_a_run_with_a_wrong_answer_ends_with_1(live, tmp_path, monkeypatch):
    schemas = json.loads(fuzz.described(running(live.url)))["components"]["schemas"]
    assert schemas["CompletionBody"]["properties"]["model"]["anyOf"] == [{"const": "tiny"}, {"type": "null"}]
    monkeypatch.setattr(fuzz, "problem", lambda *_: "a test")
    options = "--url", live.url, "--output", tmp_path, "--clients", 4, "--cases", 0, "--requests", 5
    call("serve-fuzz", *options, code=1)
    assert json.loads((tmp_path / "serve-fuzz.json").read_text())["wrong"]


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        *(("/tokenize", *case) for case in ((500, b"{}"), (200, b""), (400, b"no"), (400, b"[]"), (422, b'{"detail": []}'))),
        ("/tokenize", 400, b'{"error": {"message": "a"}}'), ("/tokenize", 400, b'{"error": "a"}'),
        ("/api/chat", 400, b'{"error": {"message": "a"}}'), ("/v1/messages", 400, b'{"error": "a"}'),
    ],
)  # fmt: skip
def test_control_a_wrong_answer_is_seen(path, status, body):
    assert fuzz.problem(path, status, body, lambda: json.loads(body))
    right = {"/api/chat": '{"error": "a"}', "/v1/messages": '{"error": {"type": "a", "message": "b"}}'}
    assert fuzz.problem(path, 400, b"", lambda: json.loads(right.get(path, OPENAI_ERROR))) is None


def test_bodies_are_there_for_every_route_of_the_document(live):
    paths = httpx2.get(f"{live.url}/openapi.json").json()["paths"]
    assert {path for path, methods in paths.items() if "post" in methods} == {path for path, _ in RIGHT}
    refused = [(path, body) for path, body in valid("tiny") if httpx2.post(live.url + path, json=body).status_code != 200]
    assert not refused


# ---- load ----


def test_a_running_server_is_measured_alone(served):
    config = LoadConfig(concurrency="1", requests=2, repeats=1, max_new_tokens=8)
    found = load.run(served, config, nothing)
    assert {(r["system"], r["answers"]) for r in found["results"]} == {("off", 2), ("automatic", 2)}
    assert "1, automatic" in load.markdown(found)


def test_figures_are_of_the_answers_that_came():
    def one(status, *chunks):
        return Answer(status=status, finish_reason="length", tokens=5, sent=1.0, ended=4.0, chunks=list(chunks))

    found = load.figures([one(200, 2.0, 3.0), one(200, 3.0, 4.0), one(429), one(500)], 2.0)
    assert (found["tokens_per_second"], found["answers"], found["refused"], found["other"]) == (5.0, 2, 1, 1)
    assert found["first_token"] == {"p50": 1500.0, "p95": pytest.approx(1950.0)}
    assert found["between_tokens"] == {"p50": 250.0, "p95": 250.0}


def test_only_off_asks_for_no_drafts():
    server, body = Server(url="", model="m"), {"prompt": "a", "max_tokens": 7, "temperature": 0.0, "seed": 3}
    assert load.body_for("off", server, body)["speculative"] is False
    assert "speculative" not in load.body_for("automatic", server, body)


def test_a_closed_loop_keeps_its_clients_busy():
    at_once = [0]

    async def work(item):
        at_once.append(at_once[-1] + 1)
        await asyncio.sleep(0)
        at_once.append(at_once[-1] - 1)
        return item * 2

    assert asyncio.run(closed_loop(work, range(7), 3)) == [0, 2, 4, 6, 8, 10, 12]
    assert max(at_once) == 3


# ---- servers and commands ----


def test_a_server_that_does_not_start_says_why():
    program = "import sys; print('first', file=sys.stderr); sys.exit('the last line')"
    start = launched([sys.executable, "-c", program])
    with pytest.raises(ConfigError, match=r"does not start \(the last line\)"), start:
        pass
    with pytest.raises(ConfigError, match="no server with a model answers there"):
        running("http://127.0.0.1:9")
