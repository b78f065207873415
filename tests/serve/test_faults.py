"""Clients that go, rounds that fail, a full queue and the end of the server: nothing hangs, nothing is answered twice."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from time import sleep
from typing import Any

import pytest
import torch

from draftwood import Limits, Pair, Sampling, Stateless
from draftwood.runners.torch_runner import TorchRunner
from draftwood.serve.errors import ApiError
from draftwood.serve.jobs import Event, Job, TextDelta
from draftwood.serve.run import make_server
from draftwood.serve.scheduler import Scheduler
from draftwood.serve.service import Service
from tests.serve import shapes
from tests.serve.conftest import chat, chunks, completion, live_server, loaded, make_service, metric, serving, until

COMPLETIONS = "/v1/completions"
LONG = completion(max_tokens=400, ignore_eos=True)
DRAFTING = 'round_failure_total{cause="drafter"}'


@pytest.fixture(scope="module")
def served(folders: tuple[Path, Path]) -> Pair:
    """The pair of the servers, one after the other."""
    return loaded(folders)


class Fault:
    """What happens in a forward of one of the models."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.raises = self.nan = False
        self.calls = 0


@pytest.fixture
def faults(served: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fault, Fault]]:
    """Those of the target and of the draft model."""
    target, draft = Fault(), Fault()
    extend = TorchRunner.extend

    def forward(self: TorchRunner, *args: Any) -> Any:
        fault = target if self is served.target else draft if self is served.draft else Fault()
        fault.calls += 1
        assert fault.open.wait(60)
        if fault.raises:
            raise RuntimeError("a fault of the test")
        scores = extend(self, *args)
        if fault.nan:
            scores.logits.fill_(torch.nan)
        return scores

    monkeypatch.setattr(TorchRunner, "extend", forward)
    yield target, draft
    target.open.set()


class Client:
    """Submits jobs without HTTP."""

    def __init__(self, pair: Pair, scheduler: Scheduler) -> None:
        self.pair, self.scheduler = pair, scheduler
        self.events: SimpleQueue[tuple[Job, Event]] = SimpleQueue()

    def job(self, seed: int, sampling: Sampling | None = None, tokens: int = 12) -> Job:
        def deliver(event: Event) -> None:
            self.events.put((found, event))

        request = self.pair.request(self.pair.encode("the fox ran"), Limits(max_new_tokens=tokens, ignore_eos=True), seed)
        found = Job(request=request, sampling=sampling or Sampling(), method=None, deliver=deliver)
        return found

    def texts(self, jobs: Sequence[Job]) -> list[str | ApiError]:
        """Submit jobs; the text of each, or its error."""
        self.scheduler.submit(jobs)
        texts, ended = {job: "" for job in jobs}, dict[Job, str | ApiError]()
        while len(ended) < len(jobs):
            job, event = self.events.get(timeout=60)
            assert job not in ended, "an event after the last one"
            if isinstance(event, ApiError):
                ended[job] = event
                continue
            texts[job] += event.text
            if event.finish_reason is not None:
                ended[job] = texts[job]
        return [ended[job] for job in jobs]


@pytest.fixture
def service(served: Pair) -> Iterator[Service]:
    """A scheduler that runs."""
    found = make_service(served)
    found.scheduler.start()
    yield found
    found.scheduler.stop()


# ---- clients that go ----


def test_a_cancelled_text_gets_no_further_round(served: Pair, service: Service) -> None:
    events: list[Event] = []

    def deliver(event: Event) -> None:
        events.append(event)
        service.scheduler.cancel([job])  # as early as can be: in the round itself

    client = Client(served, service.scheduler)
    job = Job(request=client.job(1, tokens=400).request, sampling=Sampling(), method=None, deliver=deliver)
    service.scheduler.submit([job])
    until(lambda: service.scheduler.texts == 0)
    assert len(events) == 1


def test_a_cancelled_text_that_waits_never_begins(served: Pair, faults: tuple[Fault, Fault]) -> None:
    service = make_service(served, max_rows=1)
    client = Client(served, service.scheduler)
    waiting = client.job(2)
    service.scheduler.submit([client.job(1), waiting])
    service.scheduler.cancel([waiting])
    service.scheduler.start()
    until(lambda: service.scheduler.texts == 0)
    service.scheduler.stop()
    seen = []
    while not client.events.empty():
        seen.append(client.events.get()[0])
    assert seen
    assert waiting not in seen


def post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        COMPLETIONS.encode(), len(data), data,
    )  # fmt: skip


def test_a_client_that_goes_frees_its_rows_with_and_without_a_stream(served: Pair) -> None:
    import httpx2

    service = make_service(served)
    with live_server(service) as live, httpx2.Client(base_url=live.url) as client:
        for number, stream in enumerate((True, False), 1):
            with socket.create_connection(("127.0.0.1", live.port)) as connection:
                connection.sendall(post({**LONG, "stream": stream, "n": 2}))
                if stream:
                    assert b"200 OK" in connection.recv(4096)
                until(lambda: service.scheduler.texts == 2)
            until(lambda: service.scheduler.texts == 0)
            assert metric(client, "request_cancelled_total") == 2 * number
        assert metric(client, 'request_success_total{finished_reason="length"}') == 0


def test_cut_connections_leave_the_server_as_it_was(served: Pair) -> None:
    import httpx2

    whole = post(LONG)
    with live_server(make_service(served)) as live, httpx2.Client(base_url=live.url) as client:
        for sent in (b"", b"\0\0\0", b"GET", whole[:30], whole[:-9], b"POST / HTTP/1.1\r\n\r\n" * 3):
            with socket.create_connection(("127.0.0.1", live.port)) as connection:
                connection.sendall(sent)
        assert client.post(COMPLETIONS, json=completion(), timeout=60).status_code == 200
        until(lambda: live.service.scheduler.texts == 0)


def test_many_short_requests_with_random_ends_are_all_accounted_for(served: Pair) -> None:
    service = make_service(served, max_rows=3)
    lost: list[bytes] = []

    def send(port: int, number: int) -> bool:
        rng = random.Random(number)
        body = completion(max_tokens=rng.randrange(1, 5), seed=number, stream=rng.random() < 0.5, n=rng.choice([1, 2]))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(60)
            connection.sendall(post(body).replace(b"Host: a", b"Host: a\r\nConnection: close"))
            if rng.random() < 0.3:
                sleep(rng.random() * 0.02)
                return False
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        if b" 200 OK" not in received or received.count(b"[DONE]") != body["stream"]:
            lost.append(received)
        return True

    with live_server(service) as live, ThreadPoolExecutor(8) as threads:
        whole = list(threads.map(lambda number: send(live.port, number), range(200)))
        until(lambda: service.scheduler.texts == 0)
    assert not lost
    assert 100 < sum(whole) < 180
    values = dict(re.findall(r"^draftwood:(request_\w+_total\S*) (\S+)", service.metrics.render().decode(), re.MULTILINE))
    ended = sum(float(value) for name, value in values.items() if "success" in name)
    assert ended >= sum(whole)
    assert float(values["request_cancelled_total"]) > 10
    assert float(values["request_failure_total"]) == 0


# ---- rounds that fail ----


@pytest.mark.parametrize("kind", ["raises", "nan"])
def test_a_drafter_that_fails_is_switched_off_and_texts_stay_the_same(
    served: Pair, faults: tuple[Fault, Fault], kind: str
) -> None:
    _, draft = faults
    with serving(make_service(served)) as client:
        wanted = [choice["text"] for choice in client.post(COMPLETIONS, json=completion(n=3)).json()["choices"]]
        assert draft.calls > 0
        setattr(draft, kind, True)
        response = client.post(COMPLETIONS, json=completion(n=3))
        assert response.status_code == 200
        assert [choice["text"] for choice in response.json()["choices"]] == wanted
        assert metric(client, DRAFTING) >= 1  # scores that are NaN count in every round
        setattr(draft, kind, False)
        until(lambda: metric(client, "num_requests_running") == 0)
        assert "metrics" in client.post(COMPLETIONS, json=completion()).json()  # it drafts again


def test_a_drafter_that_fails_in_the_middle_of_texts_leaves_them_as_they_are(
    served: Pair, service: Service, faults: tuple[Fault, Fault]
) -> None:
    client = Client(served, service.scheduler)
    jobs = [client.job(seed, tokens=30) for seed in range(3)]
    wanted = client.texts(jobs)
    _, draft = faults
    again = [client.job(seed, tokens=30) for seed in range(3)]
    deliver = again[0].deliver

    def fail_later(event: Event) -> None:
        draft.raises = isinstance(event, TextDelta)
        deliver(event)

    again[0] = Job(request=again[0].request, sampling=Sampling(), method=None, deliver=fail_later)
    service.scheduler.submit(again)
    texts = ["", "", ""]
    ended = 0
    while ended < 3:
        job, event = client.events.get(timeout=60)
        assert isinstance(event, TextDelta)
        texts[[one.request.seed for one in again].index(job.request.seed)] += event.text
        ended += event.finish_reason is not None
    assert texts == wanted


def test_a_target_that_fails_ends_the_texts_with_an_error_and_the_server_goes_on(
    served: Pair, faults: tuple[Fault, Fault]
) -> None:
    target, _ = faults
    with serving(make_service(served)) as client:
        wanted = client.post(COMPLETIONS, json=completion()).json()["choices"]
        target.raises = True
        for number, stream in enumerate((False, True), 1):  # nothing was written yet, so a stream has the status too
            response = client.post(COMPLETIONS, json=completion(n=2, stream=stream))
            assert response.status_code == 500
            shapes.check_error(response.json())
            assert "a fault of the test" not in response.text
            until(lambda number=number: metric(client, "request_failure_total") == 2 * number)  # type: ignore[misc]
        target.raises = False
        assert client.post(COMPLETIONS, json=completion()).json()["choices"] == wanted
        assert client.get("/health").status_code == 200


def test_a_target_that_cannot_read_prompts_ends_their_texts(served: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: TorchRunner, *args: Any, **more: Any) -> Any:
        raise RuntimeError("a fault of the test")

    long = completion(n=3, prompt="the fox ran to the hen and the dog ran to the fox " * 3)
    with serving(make_service(served)) as client:
        monkeypatch.setattr(TorchRunner, "prefill", fails)  # prompts that begin alike are read once
        response = client.post(COMPLETIONS, json=long)
        assert response.status_code == 500
        until(lambda: metric(client, "num_requests_running") == 0)
        monkeypatch.undo()
        assert client.post(COMPLETIONS, json=long).status_code == 200


def test_a_stream_that_fails_later_says_so_in_an_event(served: Pair, faults: tuple[Fault, Fault]) -> None:
    target, _ = faults
    with serving(make_service(served)) as client:
        forward = TorchRunner.extend

        def later(self: TorchRunner, *args: Any) -> Any:
            target.raises = target.calls > 2
            return forward(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TorchRunner, "extend", later)
            response = client.post("/v1/chat/completions", json=chat(stream=True, max_tokens=40))
        assert response.status_code == 200
        *first, last = chunks(response.text)
        shapes.check_error(last)
        assert first
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in first)


def test_a_request_that_fails_ends_alone(served: Pair, service: Service) -> None:
    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] > 9:  # it is tried on shorter texts
            raise ValueError("a fault of the test")
        return scores

    client = Client(served, service.scheduler)
    wanted = client.texts([client.job(seed) for seed in range(3)])
    bad = client.job(9, Sampling(processors=[Stateless(fails)]))
    *good, error = client.texts([*(client.job(seed) for seed in range(3)), bad])
    assert good == wanted
    assert isinstance(error, ApiError)
    assert error.status == 500
    assert client.texts([client.job(0)]) == wanted[:1]


def test_a_silent_stream_gets_comments(served: Pair, faults: tuple[Fault, Fault], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.serve.streams.KEEP_ALIVE_SECONDS", 0.01)
    target, _ = faults
    target.open.clear()
    with serving(make_service(served)) as client:
        threading.Timer(0.3, target.open.set).start()
        text = client.post(COMPLETIONS, json=completion(stream=True)).text
    assert text.startswith(": keep-alive\n\n")
    shapes.check_completion_chunks(chunks(text))


# ---- a full queue ----


def test_a_full_queue_refuses_and_says_when_to_come_again(served: Pair, faults: tuple[Fault, Fault]) -> None:
    import httpx2

    target, _ = faults
    service = make_service(served, max_rows=1, max_queue=2)
    with live_server(service) as live, httpx2.Client(base_url=live.url, timeout=60) as client:
        assert client.post(COMPLETIONS, json=completion(n=4)).status_code == 400  # never fits
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
        assert client.post(COMPLETIONS, json=completion()).status_code == 200


# ---- the end ----


def test_a_server_that_drains_writes_what_it_has_and_takes_nothing(served: Pair, faults: tuple[Fault, Fault]) -> None:
    target, _ = faults
    service = make_service(served)
    with serving(service) as client:
        target.open.clear()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(client.post(COMPLETIONS, json=completion())))
        thread.start()
        until(lambda: service.scheduler.texts == 1)
        service.scheduler.drain()
        refused = client.post(COMPLETIONS, json=completion())
        assert refused.status_code == client.get("/health").status_code == 503
        shapes.check_error(refused.json())
        target.open.set()
        thread.join()
    assert found[0].status_code == 200
    assert found[0].json()["usage"]["completion_tokens"] == 16


def test_texts_that_are_cut_end_with_length_and_a_stopped_server_says_so(served: Pair, service: Service) -> None:
    client = Client(served, service.scheduler)
    service.scheduler.submit([client.job(seed, tokens=400) for seed in range(10)])
    client.events.get(timeout=60)
    service.scheduler.cut()
    until(lambda: service.scheduler.texts == 0)
    ends = []
    while not client.events.empty():
        job, event = client.events.get()
        assert isinstance(event, TextDelta)
        if event.finish_reason is not None:
            ends.append((job, event.finish_reason))
    assert len({job for job, _ in ends}) == len(ends) == 10
    assert {reason for _, reason in ends} == {"length"}
    with pytest.raises(ApiError) as error:
        service.scheduler.submit([client.job(1)])
    assert error.value.status == 503


@pytest.fixture(scope="module")
def held(served: Pair) -> dict[str, Any]:
    """The body of a text that is held back after its beginning, because it could end at a stop text."""
    body = completion(max_tokens=60, ignore_eos=True, speculative=False)
    with serving(make_service(served)) as client:
        whole = client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
    return {**body, "stop": [whole[8:] + "~"], "return_token_ids": True}


def said(response: Any, *, stream: bool) -> tuple[str, list[int], str | None]:
    """Text, token ids and finish reason of a completion."""
    parts = chunks(response.text) if stream else [response.json()]
    found = [part["choices"][0] for part in parts if "choices" in part]
    ids = [token for part in found for token in part.get("token_ids", ())]
    return "".join(part["text"] for part in found), ids, found[-1]["finish_reason"]


@pytest.mark.parametrize(("end", "stream", "wanted"), [
    ("cut", True, "length"), ("cut", False, "length"), ("length", False, "length"), ("error", True, None),
])  # fmt: skip
def test_text_that_was_held_back_is_given_however_a_text_ends(
    served: Pair, faults: tuple[Fault, Fault], held: dict[str, Any], end: str, stream: bool, wanted: str | None
) -> None:
    target, _ = faults
    service = make_service(served)
    found: list[Any] = []
    with serving(service) as client:
        thread = threading.Thread(target=lambda: found.append(client.post(COMPLETIONS, json={**held, "stream": stream})))
        thread.start()
        if end != "length":
            until(lambda: target.calls > 20)
            target.open.clear()
            target.raises = end == "error"
            if end == "cut":
                service.scheduler.cut()
            target.open.set()
        thread.join()
    text, ids, reason = said(found[0], stream=stream)
    assert reason == wanted
    assert 20 <= len(ids) <= 60
    assert text == served.tokenizer.decode(ids, skip_special_tokens=True)


def test_a_thread_that_dies_ends_all_texts_and_the_server_is_not_healthy(
    served: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service(served)
    with serving(service) as client:
        monkeypatch.setattr("draftwood.serve.rows.Rows.step", lambda self: sys.exit("a fault of the test"))
        response = client.post(COMPLETIONS, json=completion())
        assert response.status_code == 503
        shapes.check_error(response.json())
        assert client.get("/health").status_code == 503
        assert client.post(COMPLETIONS, json=completion()).status_code == 503


def test_signals_drain_then_cut_then_wait_for_nothing(served: Pair) -> None:
    service = make_service(served)
    server = make_server(service)
    server.handle_exit(signal.SIGTERM, None)
    assert (server.should_exit, server.force_exit, service.scheduler.state) == (True, False, "ready")  # shutdown drains
    server.handle_exit(signal.SIGINT, None)
    assert (server.force_exit, service.scheduler.state) == (False, "draining")
    server.handle_exit(signal.SIGINT, None)
    assert server.force_exit


def test_sigterm_under_load_ends_the_texts_and_the_process_with_status_0(folders: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "draftwood", "serve", "--target", str(folders[0]), "--port", "0", "--drain", "0",
               "--name", "tiny", "--backend", "torch"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        port = next(int(found[1]) for line in lines if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(60)
            connection.sendall(post({**LONG, "max_tokens": 500, "stream": True}))
            received = connection.recv(65536)
            process.send_signal(signal.SIGTERM)
            while part := connection.recv(65536):
                received += part
        assert process.wait(60) == 0
    assert b'"finish_reason":"length"' in received
    assert received.count(b"[DONE]") == 1
    assert received.count(b"data: ") < 500
