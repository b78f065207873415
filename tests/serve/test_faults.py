"""Cancelled jobs, rounds that fail, a full queue and the end of the server: nothing hangs, nothing is answered twice."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx2
import pytest
import torch

from draftwood import Limits, Pair, Sampling, Stateless
from draftwood.runners.torch_runner import TorchRunner
from draftwood.serve.errors import ApiError
from draftwood.serve.jobs import Event, Job
from draftwood.serve.run import make_server
from draftwood.serve.scheduler import Scheduler
from tests.serve import shapes
from tests.serve.client import (
    COMPLETIONS,
    answer,
    chat,
    choice,
    chunks,
    completion,
    metric,
    parts_of,
    raw,
    refused,
    streamed,
    text_of,
)
from tests.serve.conftest import Fault, live_server, make_service, serving, until

DRAFTING = 'round_failure_total{cause="drafter"}'


class Queue:
    """Submits jobs without HTTP."""

    def __init__(self, pair: Pair, scheduler: Scheduler) -> None:
        self.pair, self.scheduler = pair, scheduler
        self.events: SimpleQueue[tuple[Job, Event]] = SimpleQueue()

    def job(self, seed: int, sampling: Any = None, *, tokens: int = 12, seen: Callable[[Event], Any] = bool) -> Job:
        """``seen`` is called with each event, in the round itself."""

        def deliver(event: Event) -> None:
            self.events.put((found, event))
            seen(event)

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

    def left(self) -> list[tuple[Job, Event]]:
        """The events that are not read yet, once nothing is written any more."""
        until(lambda: self.scheduler.texts == 0)
        return [self.events.get() for _ in range(self.events.qsize())]


@pytest.fixture
def queue(served: Pair) -> Iterator[Queue]:
    """That of a scheduler which runs."""
    scheduler = make_service(served).scheduler
    scheduler.start()
    yield Queue(served, scheduler)
    scheduler.stop()


# ---- jobs ----


def test_a_cancelled_text_gets_no_further_round(queue: Queue) -> None:
    job = queue.job(1, tokens=400, seen=lambda _: queue.scheduler.cancel([job]))  # as early as can be
    queue.scheduler.submit([job])
    assert len(queue.left()) == 1


def test_a_cancelled_text_that_waits_never_begins(served: Pair) -> None:
    queue = Queue(served, make_service(served, max_rows=1).scheduler)
    waiting = queue.job(2)
    queue.scheduler.submit([queue.job(1), waiting])
    queue.scheduler.cancel([waiting])
    queue.scheduler.start()
    seen = [job for job, _ in queue.left()]
    queue.scheduler.stop()
    assert seen
    assert waiting not in seen


# ---- rounds that fail ----


@pytest.mark.parametrize("kind", ["raises", "nan"])
def test_a_drafter_that_fails_is_switched_off_and_texts_stay_the_same(served: Pair, draft: Fault, kind: str) -> None:
    with serving(make_service(served)) as client:
        wanted = answer(client, completion(n=3))["choices"]
        assert draft.calls > 0
        setattr(draft, kind, True)
        assert answer(client, completion(n=3))["choices"] == wanted
        assert metric(client, DRAFTING) >= 1  # scores that are NaN count in every round
        setattr(draft, kind, False)
        until(lambda: metric(client, "num_requests_running") == 0)
        assert "metrics" in answer(client, completion())  # it drafts again


def test_a_drafter_that_fails_in_the_middle_of_texts_leaves_them_as_they_are(queue: Queue, draft: Fault) -> None:
    wanted = queue.texts([queue.job(seed, tokens=30) for seed in range(3)])
    again = [queue.job(seed, tokens=30, seen=lambda _: setattr(draft, "raises", True)) for seed in range(3)]
    assert queue.texts(again) == wanted


def test_a_target_that_fails_ends_the_texts_with_an_error_and_the_server_goes_on(served: Pair, target: Fault) -> None:
    with serving(make_service(served)) as client:
        wanted = answer(client, completion())
        target.raises = True
        for number, stream in enumerate((False, True), 1):  # nothing was written yet, so a stream has the status too
            assert "a fault of the test" not in str(refused(client, completion(n=2, stream=stream), 500))
            until(lambda number=number: metric(client, "request_failure_total") == 2 * number)  # type: ignore[misc]
        target.raises = False
        assert answer(client, completion())["choices"] == wanted["choices"]
        assert client.get("/health").status_code == 200


def test_a_target_that_cannot_read_prompts_ends_their_texts(served: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: TorchRunner, *args: Any, **more: Any) -> Any:
        raise RuntimeError("a fault of the test")

    long = completion(n=3, prompt="the fox ran to the hen and the dog ran to the fox " * 3)
    with serving(make_service(served)) as client:
        monkeypatch.setattr(TorchRunner, "prefill", fails)  # prompts that begin alike are read once
        refused(client, long, 500)
        until(lambda: metric(client, "num_requests_running") == 0)
        monkeypatch.undo()
        assert answer(client, long)


def test_a_stream_that_fails_later_says_so_in_an_event(served: Pair, target: Fault) -> None:
    with serving(make_service(served)) as client:
        forward = TorchRunner.extend

        def later(self: TorchRunner, *args: Any) -> Any:
            target.raises = target.calls > 2
            return forward(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TorchRunner, "extend", later)
            *first, last = streamed(client, chat(max_tokens=40))
        shapes.check_error(last)
        assert first
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in first)


def test_a_request_that_fails_ends_alone(queue: Queue) -> None:
    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] > 9:  # it is tried on shorter texts
            raise ValueError("a fault of the test")
        return scores

    wanted = queue.texts([queue.job(seed) for seed in range(3)])
    bad = queue.job(9, Sampling(processors=[Stateless(fails)]))
    *good, error = queue.texts([*(queue.job(seed) for seed in range(3)), bad])
    assert good == wanted
    assert isinstance(error, ApiError)
    assert error.status == 500
    assert queue.texts([queue.job(0)]) == wanted[:1]


def test_a_silent_stream_gets_comments(served: Pair, target: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.serve.streams.KEEP_ALIVE_SECONDS", 0.01)
    target.open.clear()
    with serving(make_service(served)) as client:
        threading.Timer(0.3, target.open.set).start()
        text = client.post(COMPLETIONS, json=completion(stream=True)).text
    assert text.startswith(": keep-alive\n\n")
    shapes.check_completion_chunks(chunks(text))


# ---- a full queue ----


def test_a_full_queue_refuses_and_says_when_to_come_again(served: Pair, target: Fault) -> None:
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


def test_a_server_that_drains_writes_what_it_has_and_takes_nothing(served: Pair, target: Fault) -> None:
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


def test_texts_that_are_cut_end_with_length_and_a_stopped_server_says_so(queue: Queue) -> None:
    queue.scheduler.submit([queue.job(seed, tokens=400) for seed in range(10)])
    queue.events.get(timeout=60)
    queue.scheduler.cut()
    ends = [(job, event.finish_reason) for job, event in queue.left() if event.finish_reason is not None]
    assert len({job for job, _ in ends}) == len(ends) == 10
    assert {reason for _, reason in ends} == {"length"}
    with pytest.raises(ApiError) as error:
        queue.scheduler.submit([queue.job(1)])
    assert error.value.status == 503


@pytest.fixture(scope="module")
def held(served: Pair) -> dict[str, Any]:
    """The body of a text that is held back after its beginning, because it could end at a stop text."""
    body = completion(max_tokens=60, ignore_eos=True, speculative=False)
    with serving(make_service(served)) as client:
        whole = text_of(choice(client, body))
    return {**body, "stop": [whole[8:] + "~"], "return_token_ids": True}


@pytest.mark.parametrize(("end", "stream", "wanted"), [
    ("cut", True, "length"), ("cut", False, "length"), ("length", False, "length"), ("error", True, None),
])  # fmt: skip
def test_text_that_was_held_back_is_given_however_a_text_ends(
    served: Pair, target: Fault, held: dict[str, Any], end: str, stream: bool, wanted: str | None
) -> None:
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


def test_a_thread_that_dies_ends_all_texts_and_the_server_is_not_healthy(
    served: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(make_service(served)) as client:
        monkeypatch.setattr("draftwood.serve.rows.Rows.step", lambda self: sys.exit("a fault of the test"))
        for _ in range(2):
            refused(client, completion(), 503)
            assert client.get("/health").status_code == 503


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
            connection.sendall(raw(completion(max_tokens=500, ignore_eos=True, stream=True)))
            received = connection.recv(65536)
            process.send_signal(signal.SIGTERM)
            while part := connection.recv(65536):
                received += part
        assert process.wait(60) == 0
    assert b'"finish_reason":"length"' in received
    assert received.count(b"[DONE]") == 1
    assert received.count(b"data: ") < 500
