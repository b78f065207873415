"""Clients that go: their texts end, those that wait too, and the others are answered."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect

from draftwood import Limits, Pair, Sampling
from draftwood.engine.requests import Request
from draftwood.serve.answers import Answer, while_present
from draftwood.serve.jobs import Job, TextDelta
from draftwood.serve.prepare import Prepared
from draftwood.serve.scheduler import Scheduler
from tests.serve.client import completion, raw
from tests.serve.conftest import Fault, Live, live_server, make_service, until


@pytest.fixture
def live(served: Pair, request: pytest.FixtureRequest) -> Iterator[Live]:
    """A server of one row, or as many as a test wants."""
    with live_server(make_service(served, max_rows=getattr(request, "param", 1))) as found:
        yield found


def sent(live: Live, seed: int, **fields: Any) -> socket.socket:
    """A connection with a request for a text that waits, or is written."""
    before, found = live.service.scheduler.texts, connected(live)
    found.sendall(raw(completion(seed=seed, ignore_eos=True, **fields), "Connection: close"))
    until(lambda: live.service.scheduler.texts > before)
    return found


def connected(live: Live) -> socket.socket:
    return socket.create_connection(("127.0.0.1", live.port), timeout=60)


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def text_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK"), answer[:200]
    return str(json.loads(body)["choices"][0]["text"])


def written(live: Live, seed: int) -> str:
    """The text of a client that is alone and stays."""
    with sent(live, seed) as connection:
        return text_of(rest(connection))


def test_clients_that_have_gone_are_not_answered_and_the_others_are(live: Live, target: Fault) -> None:
    """ikawrakow/ik_llama.cpp#1929, sgl-project/sglang#35255: queued, and without a stream."""
    alone = {seed: written(live, seed) for seed in (1, 4)}
    target.open.clear()
    first = sent(live, 1)
    sent(live, 2, stream=True).close()
    sent(live, 3).close()
    last = sent(live, 4)
    assert live.service.scheduler.texts == 4, "control: the round that is at work ends first"
    target.open.set()
    with first, last:
        assert (text_of(rest(first)), text_of(rest(last))) == (alone[1], alone[4])
    until(lambda: live.service.scheduler.texts == 0)
    assert live.metric("request_cancelled_total") == 2
    assert live.metric('request_success_total{finished_reason="length"}') == 4
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert live.metric(gauge) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_while_its_texts_are_written_frees_the_rows(live: Live, stream: bool) -> None:
    with sent(live, 1, max_tokens=480, stream=stream, n=2) as connection:
        if stream:
            assert b"200 OK" in connection.recv(4096)
    until(lambda: live.service.scheduler.texts == 0)
    assert live.metric("request_cancelled_total") == 2
    assert live.metric('request_success_total{finished_reason="length"}') == 0


def test_a_request_that_is_cut_is_not_answered_and_leaves_the_server_as_it_was(live: Live) -> None:
    whole = raw(completion(max_tokens=400))
    for data in (b"", b"\0\0\0", b"GET", whole[:30], whole[:-9], b"POST / HTTP/1.1\r\n\r\n" * 3):
        with connected(live) as connection:
            connection.sendall(data)
    for data in (whole[:30], whole[:-9]):
        with connected(live) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            assert rest(connection) == b""
    assert written(live, 1)
    assert live.service.scheduler.texts == 0


@pytest.mark.parametrize("live", [3], indirect=True)
def test_many_short_requests_with_random_ends_are_all_accounted_for(live: Live) -> None:
    lost: list[bytes] = []

    def send(number: int) -> bool:
        rng = random.Random(number)
        body = completion(max_tokens=rng.randrange(1, 5), seed=number, stream=rng.random() < 0.5, n=rng.choice([1, 2]))
        with connected(live) as connection:
            connection.sendall(raw(body, "Connection: close"))
            if rng.random() < 0.3:
                sleep(rng.random() * 0.02)
                return False
            received = rest(connection)
        if b" 200 OK" not in received or received.count(b"[DONE]") != body["stream"]:
            lost.append(received)
        return True

    with ThreadPoolExecutor(8) as threads:
        whole = list(threads.map(send, range(200)))
    until(lambda: live.service.scheduler.texts == 0)
    assert not lost
    assert 100 < sum(whole) < 180
    ended = [live.metric(f'request_success_total{{finished_reason="{reason}"}}') for reason in ("length", "stop")]
    assert sum(ended) >= sum(whole)
    assert live.metric("request_cancelled_total") > 10
    assert live.metric("request_failure_total") == 0


# ---- in the very moment in which a part of the text comes ----


class Taken:
    """In place of a scheduler: keeps the jobs, and writes nothing."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.cancelled: list[Job] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)

    def cancel(self, jobs: Sequence[Job]) -> None:
        self.cancelled += jobs


async def leave(turns: int) -> Taken:
    """A part of the text comes, and so many turns of the event loop later the client goes."""
    scheduler, gone = Taken(), asyncio.Event()
    request = Request(prompt=[1], limits=Limits(max_new_tokens=9))
    prepared = Prepared(requests=[request], sampling=Sampling(), method=None, prompt_tokens=1)
    answer = Answer(cast(Scheduler, scheduler), prepared)

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        async for _ in answer.events(60):
            pass

    waiting = asyncio.create_task(while_present(receive, work()))
    await asyncio.sleep(0.01)
    scheduler.jobs[0].deliver(TextDelta(tokens=(1,), text="a", finish_reason=None))
    for _ in range(turns):
        await asyncio.sleep(0)
    gone.set()
    done, _ = await asyncio.wait({waiting}, timeout=10)
    waiting.cancel()
    assert done, "the text goes on without its client"
    with pytest.raises(ClientDisconnect):
        await waiting
    answer.close()
    return scheduler


@pytest.mark.parametrize("turns", range(6))
def test_the_text_of_a_client_that_goes_while_a_part_comes_is_cancelled(turns: int) -> None:
    scheduler = asyncio.run(leave(turns))
    assert scheduler.cancelled == scheduler.jobs
