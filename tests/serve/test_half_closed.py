"""Clients on sockets that send no more: those that read on are answered, and the texts of those that have gone end."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwood import Pair
from draftwood.runners.torch_runner import TorchRunner
from tests.serve.conftest import Live, chunks, completion, live_server, loaded, make_service, until

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class Gate:
    """Rounds of the target wait here while it is closed."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()


@pytest.fixture(scope="module")
def served(folders: tuple[Path, Path]) -> Pair:
    return loaded(folders)


@pytest.fixture
def gate(served: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found, extend = Gate(), TorchRunner.extend

    def forward(self: TorchRunner, *args: Any) -> Any:
        assert self is not served.target or found.open.wait(60)
        return extend(self, *args)

    monkeypatch.setattr(TorchRunner, "extend", forward)
    yield found
    found.open.set()


@pytest.fixture
def live(served: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setattr("draftwood.serve.connections._FIRST_SECONDS", 0.01)
    with live_server(make_service(served, max_rows=1)) as found:
        yield found


def sent(live: Live, seed: int, *, version: str = "1.1", **fields: Any) -> socket.socket:
    """A connection with a request for a text that waits, or is written."""
    data = json.dumps(completion(seed=seed, ignore_eos=True, **fields)).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    before, found = live.service.scheduler.texts, socket.create_connection(("127.0.0.1", live.port))
    found.settimeout(60)
    found.sendall(head.encode() + b"\r\n\r\n" + data)
    until(lambda: live.service.scheduler.texts > before)
    return found


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection, without interim answers."""
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    return received.replace(INTERIM, b"")


def text_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK"), answer[:200]
    return str(json.loads(body)["choices"][0]["text"])


def value(live: Live, name: str) -> float:
    found = re.search(rf"^draftwood:{name} (\S+)$", live.service.metrics.render().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait_for_interim(connection: socket.socket, count: int) -> None:
    received = b""
    while received.count(INTERIM) < count:
        received += connection.recv(len(INTERIM))
        assert received.startswith(INTERIM)


def written(live: Live, seed: int) -> str:
    """The text of a client that is alone and stays."""
    with sent(live, seed) as connection:
        connection.shutdown(socket.SHUT_WR)
        return text_of(rest(connection))


def test_a_client_that_sends_no_more_is_answered_and_those_that_have_gone_are_not(live: Live, gate: Gate) -> None:
    """ikawrakow/ik_llama.cpp#1929, sgl-project/sglang#35255: queued, half-closed, and without a stream."""
    alone = {seed: written(live, seed) for seed in (1, 4)}
    gate.open.clear()
    first = sent(live, 1)
    sent(live, 2, stream=True).close()
    sent(live, 3).close()
    half = sent(live, 4)
    half.shutdown(socket.SHUT_WR)
    wait_for_interim(half, 4)  # later than two for those that have gone
    assert live.service.scheduler.texts == 4, "control: the round that is at work ends first"
    gate.open.set()
    with half:
        assert text_of(rest(half)) == alone[4]
    until(lambda: live.service.scheduler.texts == 0)
    first.shutdown(socket.SHUT_WR)
    with first:
        assert text_of(rest(first)) == alone[1]
    assert value(live, "request_cancelled_total") == 2
    assert value(live, 'request_success_total{finished_reason="length"}') == 4
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value(live, gauge) == 0


def test_a_stream_goes_on_for_a_client_that_sends_no_more(live: Live) -> None:
    whole = written(live, 1)
    with sent(live, 1, stream=True) as connection:
        connection.shutdown(socket.SHUT_WR)
        body = rest(connection).partition(b"\r\n\r\n")[2].decode()
    events = "\n\n".join(re.findall(r"^data: .*$", body, re.MULTILINE)) + "\n\n"
    assert "".join(part["choices"][0]["text"] for part in chunks(events)) == whole


def test_a_client_that_sends_no_more_and_then_goes_is_noticed(live: Live, gate: Gate) -> None:
    gate.open.clear()
    with sent(live, 1), sent(live, 2) as half, sent(live, 3) as stays:
        half.shutdown(socket.SHUT_WR)
        wait_for_interim(half, 2)
        half.close()
        stays.shutdown(socket.SHUT_WR)
        wait_for_interim(stays, 5)  # more than the interim answers to the one that has gone need
        gate.open.set()
        text_of(rest(stays))
        assert value(live, "request_cancelled_total") >= 1
    until(lambda: live.service.scheduler.texts == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_while_its_text_is_written_frees_the_row(live: Live, stream: bool) -> None:
    with sent(live, 1, max_tokens=480, stream=stream) as connection:
        if stream:
            connection.recv(100)
    until(lambda: live.service.scheduler.texts == 0)
    assert value(live, "request_cancelled_total") == 1


def test_an_old_client_gets_no_interim_answer(live: Live, gate: Gate) -> None:
    gate.open.clear()
    with sent(live, 1, version="1.0") as connection:
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection) == b""
    gate.open.set()
    until(lambda: live.service.scheduler.texts == 0)
    assert value(live, "request_cancelled_total") == 1


def test_a_request_that_is_cut_is_not_answered(live: Live) -> None:
    for data in (b"POST /v1/completions HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
                 b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"):  # fmt: skip
        with socket.create_connection(("127.0.0.1", live.port)) as connection:
            connection.settimeout(60)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            assert rest(connection) == b""
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.settimeout(60)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection).count(b'{"status":"ok"}') == 2
