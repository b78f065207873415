"""The log: one line a request, never its prompt; every cause once; ids in headers and errors."""

import json
import logging
import re
import socket

import httpx2
import pytest

from draftwood.serve.http.log import REQUESTS, JsonLines, start_log
from tests.serve.client import COMPLETIONS, answer, completion, raw
from tests.serve.conftest import make_service, process, serving, until

SECRET = "the fox ran"


@pytest.fixture
def log(caplog):
    with caplog.at_level(logging.INFO):
        yield caplog


def lines(log):
    return [record.fields for record in log.records if hasattr(record, "fields")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_one_line_with_its_tokens(client, log, stream):
    client.post(COMPLETIONS, json=completion(n=2, stream=stream), headers={"x-request-id": "mine-1"})
    [line] = lines(log)
    usage = answer(client, completion(n=2))["usage"]
    assert (line["id"], line["route"], line["status"]) == ("mine-1", f"POST {COMPLETIONS}", 200)
    assert line.items() >= {(name, usage[name]) for name in ("prompt_tokens", "completion_tokens")}
    assert 0 < line["seconds"] < 60
    assert 1 < line["tokens_per_pass"] <= 3  # a tree of two levels
    answer(client, completion(speculative=False))
    assert lines(log)[-1]["tokens_per_pass"] == 1
    assert SECRET not in log.text


def test_a_sane_id_of_the_client_is_kept_and_another_one_is_replaced(client):
    def made(given):
        return client.get("/health", headers={b"x-request-id": given.encode()}).headers["x-request-id"]

    for given in ("a", "0af7651916cd43dd8448eb211c80319c", "x" * 128, "a/b=c:d.e+f-g_h"):
        assert made(given) == given
    for given in ("", "x" * 129, "a b", 'a"b', "a;b", "é"):
        assert re.fullmatch(r"req-[0-9a-f]{32}", made(given))
        assert made(given) != made(given)


def test_an_error_has_the_id_and_its_line_the_code(client, log):
    for wrong, status, code in (({"temperature": -1}, 400, "invalid_value"), ({"model": "b"}, 404, "model_not_found")):
        found = client.post(COMPLETIONS, json=completion(**wrong))
        assert found.json()["request_id"] == found.headers["x-request-id"] == lines(log)[-1]["id"]
        assert (lines(log)[-1]["status"], lines(log)[-1]["error"]) == (status, code)
    client.get("/no%0Asuch", headers={"x-request-id": "a"})
    assert re.search(r'id=a route="GET /no\\nsuch" status=404 seconds=\S+ error=not_found$', log.text, re.MULTILINE)
    assert SECRET not in log.text


def test_what_watches_the_server_is_logged_only_when_it_fails(served, log):
    service = make_service(served)
    with serving(service) as client:
        assert [client.get(path).status_code for path in ("/health", "/metrics")] == [200, 200]
        service.scheduler.drain()
        client.get("/health")
    assert [line["status"] for line in lines(log)] == [503]


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_fails_has_its_cause_once_with_its_id(served, target, log, stream):
    with serving(make_service(served)) as client:
        target.nan = True
        client.post(COMPLETIONS, json=completion(stream=stream), headers={"x-request-id": "mine-2"})
    assert [record.getMessage() for record in log.records if record.exc_info] == ["a text of mine-2 failed"]
    assert lines(log)[-1]["error"] == "internal_error"


def test_a_handler_that_raises_is_answered_and_its_cause_is_logged_once(client, log, monkeypatch):
    monkeypatch.setattr("draftwood.serve.registry.Registry.find", lambda *_: 1 / 0)
    found = client.post(COMPLETIONS, json=completion())
    assert (found.status_code, found.json()["request_id"]) == (500, found.headers["x-request-id"])
    [cause] = [record for record in log.records if record.exc_info]
    line = JsonLines().format(cause)
    assert "\n" not in line
    assert "ZeroDivisionError: division by zero" in json.loads(line)["cause"]
    assert (lines(log)[-1]["status"], lines(log)[-1]["error"]) == (500, "internal_error")


def test_a_client_that_goes_is_logged_as_gone(live, target, log):
    target.open.clear()
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.sendall(raw(completion(max_tokens=400)))
        until(lambda: target.calls > 0)
    target.open.set()
    until(lambda: bool(lines(log)))
    assert [line["status"] for line in lines(log)] == [499]


def test_the_process_logs_as_it_was_started(folders):
    with process(folders[0], "--log", "json", "--backend", "torch") as (server, url, lines):
        httpx2.post(f"{url}{COMPLETIONS}", json=completion(blue=1), headers={"x-request-id": "mine-3"}, timeout=60)
        server.terminate()
        [own] = [line for line in lines if "blue" in line]  # once, whatever loaded the models
    assert json.loads(own).items() >= {"id": "mine-3", "ignored": ["blue"]}.items()


@pytest.mark.parametrize("kind", ["text", "off"])
def test_a_log_of_another_kind(client, capsys, kind):
    loggers = logging.getLogger("draftwood"), REQUESTS
    before = [(one.level, one.propagate, [*one.handlers]) for one in loggers]
    start_log(kind)
    client.post(COMPLETIONS, json=completion(blue=1), headers={"x-request-id": "mine-3"})
    logging.getLogger("draftwood.serve").warning("late")
    for one, (level, one.propagate, one.handlers[:]) in zip(loggers, before, strict=True):
        one.setLevel(level)
    *own, warning = capsys.readouterr().err.splitlines()
    assert "late" in warning
    written = r'INFO .*: id=mine-3 route="POST /v1/completions" status=200 .* seconds=\S+ ignored=\["blue"\]$'
    assert len(own) == sum(re.search(written, line) is not None for line in own) == (kind == "text")
