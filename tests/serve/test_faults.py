"""Rounds that fail, a full queue, the end of the server, clients that go: nothing hangs, nothing is answered twice."""

import asyncio
import json
import re
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import httpx2
import pytest
from starlette.requests import ClientDisconnect

from draftwood import Sampling
from draftwood.engine.requests import Request
from draftwood.runners.native.runner import NativeRunner
from draftwood.sampling.processors import Stateless
from draftwood.serve.decoding.jobs import Job, TextDelta
from draftwood.serve.decoding.scheduler import Scheduler
from draftwood.serve.openai import prepare
from draftwood.serve.openai.answers import Answer, while_present
from draftwood.serve.registry import Registry
from draftwood.serve.run import make_server
from tests.serve import shapes
from tests.serve.client import COMPLETIONS, answer, chat, choice, chunks, completion, metric, parts_of, raw, refused, text_of
from tests.serve.conftest import live_server, make_service, process, serving, until
from tests.serve.interfaces import EVENTS, MESSAGES_ROUTE, OLLAMA, RESPONSES, request

DRAFTING = 'round_failure_total{cause="drafter"}'


# ---- rounds that fail ----


@pytest.mark.parametrize("kind", ["raises", "nan"])
def test_a_drafter_that_fails_is_switched_off_and_texts_stay_the_same(served, draft, kind):
    with serving(make_service(served)) as client:
        wanted = answer(client, completion(n=3))["choices"]
        assert draft.calls > 0
        setattr(draft, kind, True)
        assert answer(client, completion(n=3))["choices"] == wanted
        assert metric(client, DRAFTING) >= 1  # scores that are NaN count in every round
        setattr(draft, kind, False)
        until(lambda: metric(client, "num_requests_running") == 0)
        assert "metrics" in answer(client, completion())  # it drafts again


def test_a_target_that_fails_ends_the_texts_with_an_error_and_the_server_goes_on(served, target):
    with serving(make_service(served)) as client:
        wanted = answer(client, completion())
        target.raises = True
        for number, stream in enumerate((False, True), 1):  # nothing was written yet, so a stream has the status too
            assert "a fault of the test" not in str(refused(client, completion(n=2, stream=stream), 500))
            until(lambda number=number: metric(client, "request_failure_total") == 2 * number)
        target.raises = False
        assert answer(client, completion())["choices"] == wanted["choices"]
        assert client.get("/health").status_code == 200


def test_a_target_that_cannot_read_prompts_ends_their_texts(served, monkeypatch):
    def fails(self, *args, **more):
        raise RuntimeError("a fault of the test")

    long = completion(n=3, prompt="the fox ran to the hen and the dog ran to the fox " * 3)
    with serving(make_service(served)) as client:
        monkeypatch.setattr(NativeRunner, "prefill", fails)  # prompts that begin alike are read once
        refused(client, long, 500)
        until(lambda: metric(client, "num_requests_running") == 0)
        monkeypatch.undo()
        assert answer(client, long)


def test_a_stream_that_fails_later_says_so_in_an_event(served, target):
    with serving(make_service(served)) as client:
        target.fails_at = 3
        *first, last = parts_of(client, chat(max_tokens=40), stream=True)
        shapes.check_error(last)
        assert first
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in first)
        heads = {
            RESPONSES: "event: response.failed\n", MESSAGES_ROUTE: 'event: error\ndata: {"error":{"type":"api_error"',
            OLLAMA: '{"error":"',
        }  # fmt: skip
        for path, head in heads.items():
            target.fails_at = target.calls + 3
            response = client.post(path, json={**request(path, seed=1), "ignore_eos": True, "stream": True})
            *_, end = re.split(r"\n\n|\n(?={)", response.text.strip())
            assert (response.status_code, end.startswith(head)) == (200, True)
            assert path != RESPONSES or EVENTS.validate_json(end.partition("data: ")[2], strict=True)


def test_a_text_that_fails_leaves_the_others_alone(served, monkeypatch):
    plain = prepare.sampling_of

    def fails(ids, scores):
        if ids.shape[1] > 12:  # it is tried on shorter texts
            raise ValueError("a fault of the test")
        return scores

    def faulty(pair, body, *given):
        found = plain(pair, body, *given)
        return replace(found, processors=[Stateless(fails)]) if body.seed == 9 else found

    monkeypatch.setattr(prepare, "sampling_of", faulty)
    with serving(make_service(served)) as client, ThreadPoolExecutor() as threads:
        good = [completion(seed=seed) for seed in range(3)]
        wanted = [text_of(*answer(client, body)["choices"]) for body in good]
        bad = threads.submit(client.post, COMPLETIONS, json=completion(seed=9))
        assert [text_of(*found["choices"]) for found in threads.map(lambda body: answer(client, body), good)] == wanted
        assert bad.result().status_code == 500
        assert metric(client, 'round_failure_total{cause="request"}') == 1
        assert [text_of(*answer(client, body)["choices"]) for body in good] == wanted


@pytest.mark.parametrize(("path", "sign"), [
    (COMPLETIONS, '"text":""'), ("/v1/chat/completions", '"delta":{"content":""}'), ("/v1/messages", '{"type":"ping"}'),
    ("/v1/responses", '"type":"response.in_progress"'), ("/api/chat", '"content":""'),
])  # fmt: skip
def test_a_silent_stream_gets_events_of_its_interface(served, target, monkeypatch, path, sign):
    monkeypatch.setattr("draftwood.serve.openai.streams.KEEP_ALIVE_SECONDS", 0.01)
    target.open.clear()
    with serving(make_service(served)) as client:
        threading.Timer(0.3, target.open.set).start()
        text = client.post(path, json={**request(path), "stream": True}).text
    assert text.count(sign) > 3
    if path == COMPLETIONS:
        shapes.check_completion_chunks(chunks(text))
    elif "chat/" in path:
        shapes.check_chat_chunks(chunks(text))


# ---- a full queue ----


def test_a_full_queue_refuses_and_says_when_to_come_again(served, target):
    service = make_service(served, max_rows=1, max_queue=2)
    with live_server(service) as live, httpx2.Client(base_url=live.url, timeout=60) as client:
        refused(client, completion(n=4))  # never fits
        target.open.clear()
        threads = [threading.Thread(target=client.post, args=(COMPLETIONS,), kwargs={"json": completion()}) for _ in "abc"]
        for thread in threads:
            thread.start()
        until(lambda: service.scheduler.texts == 3)
        until(lambda: metric(client, "num_requests_running") == 1)
        assert metric(client, "num_requests_waiting") == 2
        response = client.post(COMPLETIONS, json=completion())
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        shapes.check_error(response.json())
        assert client.get("/health").status_code == 200
        target.open.set()
        for thread in threads:
            thread.join()
        assert answer(client, completion())


# ---- the end ----


def test_a_server_that_drains_writes_what_it_has_and_takes_nothing(served, target):
    service = make_service(served)
    with serving(service) as client:
        target.open.clear()
        with ThreadPoolExecutor() as threads:
            found = threads.submit(answer, client, completion())
            until(lambda: service.scheduler.texts == 1)
            service.scheduler.drain()
            refused(client, completion(), 503)
            assert client.get("/health").status_code == 503
            target.open.set()
    assert found.result()["usage"]["completion_tokens"] == 16


@pytest.fixture(scope="module")
def held(served):
    """The body of a text that is held back after its beginning, because it could end at a stop text."""
    body = completion(max_tokens=60, ignore_eos=True, speculative=False)
    with serving(make_service(served)) as client:
        whole = text_of(choice(client, body))
    return {**body, "stop": [whole[8:] + "~"], "return_token_ids": True}


@pytest.mark.parametrize(("end", "stream", "wanted"), [
    ("cut", True, "length"), ("cut", False, "length"), ("length", False, "length"), ("error", True, None),
])  # fmt: skip
def test_text_that_was_held_back_is_given_however_a_text_ends(served, target, held, end, stream, wanted):
    service = make_service(served)
    with serving(service) as client, ThreadPoolExecutor() as threads:
        parts = threads.submit(parts_of, client, held, stream=stream)
        if end != "length":
            until(lambda: target.calls > 20)
            target.open.clear()
            target.raises = end == "error"
            if end == "cut":
                service.scheduler.cut()
            target.open.set()
        found = [part["choices"][0] for part in parts.result() if "choices" in part]
    ids = [token for part in found for token in part.get("token_ids", ())]
    assert found[-1]["finish_reason"] == wanted
    assert 20 <= len(ids) <= 60
    assert text_of(*found) == served.tokenizer.decode(ids, skip_special_tokens=True)


def test_a_thread_that_dies_ends_all_texts_and_the_server_is_not_healthy(served, monkeypatch):
    with serving(make_service(served)) as client:
        monkeypatch.setattr("draftwood.serve.decoding.rows.Rows.step", lambda self: sys.exit("a fault of the test"))
        for _ in range(2):
            refused(client, completion(), 503)
            assert client.get("/health").status_code == 503


def test_signals_drain_then_cut_then_wait_for_nothing(served):
    service = make_service(served)
    server = make_server(Registry.of(service))
    server.handle_exit(signal.SIGTERM, None)
    assert (server.should_exit, server.force_exit, service.scheduler.state) == (True, False, "ready")  # shutdown drains
    server.handle_exit(signal.SIGINT, None)
    assert (server.force_exit, service.scheduler.state) == (False, "draining")
    server.handle_exit(signal.SIGINT, None)
    assert server.force_exit


def test_sigterm_under_load_ends_the_texts_and_the_process_with_status_0(folders):
    with process(folders[0], "--drain", "0", "--backend", "torch") as (server, url, lines):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
            connection.settimeout(60)
            connection.sendall(raw(completion(max_tokens=500, ignore_eos=True, stream=True)))
            received = connection.recv(65536)
            server.send_signal(signal.SIGTERM)
            while part := connection.recv(65536):
                received += part
        assert "Stopping: 1 unfinished text may end within 0 s (--drain); Ctrl-C ends them at once.\n" in lines
        assert server.wait(60) == 0
    assert b'"finish_reason":"length"' in received
    assert received.count(b"[DONE]") == 1
    assert received.count(b"data: ") < 500


# ---- clients that go: their texts end, those that wait too, and the others are answered ----


@pytest.fixture
def live(served):
    """A server of one row."""
    with live_server(make_service(served, max_rows=1)) as found:
        yield found


def sent(live, seed, **fields):
    """A connection with a request for a text that waits, or is written."""
    before, found = live.service.scheduler.texts, connected(live)
    found.sendall(raw(completion(seed=seed, ignore_eos=True, **fields), "Connection: close"))
    until(lambda: live.service.scheduler.texts > before)
    return found


def connected(live):
    return socket.create_connection(("127.0.0.1", live.port), timeout=60)


def rest(connection):
    """What comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def said(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK"), answer[:200]
    return str(json.loads(body)["choices"][0]["text"])


def written(live, seed):
    """The text of a client that is alone and stays."""
    with sent(live, seed) as connection:
        return said(rest(connection))


def test_clients_that_have_gone_are_not_answered_and_the_others_are(live, target):
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
        assert (said(rest(first)), said(rest(last))) == (alone[1], alone[4])
    until(lambda: live.service.scheduler.texts == 0)
    assert live.metric("request_cancelled_total") == 2
    assert live.metric('request_success_total{finished_reason="length"}') == 4
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert live.metric(gauge) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_while_its_texts_are_written_frees_the_rows(live, stream):
    with sent(live, 1, max_tokens=480, stream=stream, n=2) as connection:
        if stream:
            assert b"200 OK" in connection.recv(4096)
    until(lambda: live.service.scheduler.texts == 0)
    assert live.metric("request_cancelled_total") == 2
    assert live.metric('request_success_total{finished_reason="length"}') == 0


def test_a_request_that_is_cut_is_not_answered_and_leaves_the_server_as_it_was(live):
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


@pytest.mark.parametrize("turns", range(6))
def test_the_text_of_a_client_that_goes_while_a_part_comes_is_cancelled(turns):
    """A part of the text comes, and so many turns of the event loop later the client goes."""
    scheduler = Mock(spec=Scheduler)

    async def leave():
        gone = asyncio.Event()
        found = Answer(jobs=[Job(request=Request(prompt=[1]), sampling=Sampling(), method=None)])
        found.start(scheduler, Mock())

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def work():
            async for _ in found.events(60):
                pass

        waiting = asyncio.create_task(while_present(receive, work()))
        await asyncio.sleep(0.01)
        [job] = scheduler.submit.call_args.args[0]
        job.deliver(TextDelta(tokens=(1,), text="a", finish_reason=None))
        for _ in range(turns):
            await asyncio.sleep(0)
        gone.set()
        done, _ = await asyncio.wait({waiting}, timeout=10)
        waiting.cancel()
        assert done, "the text goes on without its client"
        with pytest.raises(ClientDisconnect):
            await waiting
        found.close()

    asyncio.run(leave())
    assert scheduler.cancel.call_args == scheduler.submit.call_args
