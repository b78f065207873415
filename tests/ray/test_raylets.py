"""A cluster of raylets on this machine, and what gets lost in it. It takes minutes: DRAFTWOOD_RAYLETS=1 runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

import httpx2
import pytest

from draftwood import ConfigError
from draftwood.ray import WriteSettings, app, write
from draftwood.ray.cluster import Fleet, connected
from draftwood.serve.http.settings import ServeOptions
from tests.ray.conftest import OPTIONS, draftwood, records
from tests.ray.raylets import REPLICA, WRITER, raylets, workers
from tests.serve.conftest import until
from tests.serve.shapes import check_error

ray = pytest.importorskip("ray", reason='needs ray: pip install ".[ray]"')
serve = pytest.importorskip("ray.serve")
pytestmark = pytest.mark.skipif(not os.environ.get("DRAFTWOOD_RAYLETS"), reason="takes minutes: set DRAFTWOOD_RAYLETS=1")
with socket.socket() as _free:
    _free.bind(("127.0.0.1", 0))
    PORT = _free.getsockname()[1]
KEY = {"Authorization": "Bearer sesame"}


@pytest.fixture(scope="module")
def cluster():
    """A head without CPUs, and two nodes with one each."""
    with raylets() as made:
        yield made


@pytest.fixture(scope="module")
def url(cluster, spec, tmp_path_factory):
    """Two replicas behind one address, with a key."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("sesame\n")
    ray.init(address=cluster.address, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT, "location": "HeadOnly"})
    serve.run(app(spec(serving=ServeOptions(api_key_file=keys, name=("tiny",))), replicas=2), name="draftwood")
    yield f"http://127.0.0.1:{PORT}"
    serve.shutdown()
    ray.shutdown()


def body(seed, **more):
    return {"prompt": "the fox ran", "seed": seed, "max_tokens": 200, "ignore_eos": True, **more}


def whole(url, seed, **more):
    response = httpx2.post(f"{url}/v1/completions", json=body(seed, **more), headers=KEY, timeout=120)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


@dataclass
class Stream:
    """A stream that a thread reads."""

    url: str
    seed: int
    text: str = ""
    chunks: int = 0
    done: bool = False
    error: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self):
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        try:
            sent = {"json": body(self.seed, stream=True), "headers": KEY, "timeout": 120}
            with httpx2.stream("POST", f"{self.url}/v1/completions", **sent) as response:
                for line in response.iter_lines():
                    self.take(line.removeprefix("data: "))
        except Exception as error:
            self.error = error

    def take(self, data):
        self.done = self.done or data == "[DONE]"
        if data.startswith("{"):
            self.chunks += 1
            self.text += json.loads(data)["choices"][0]["text"]


def metrics(url):
    """Replica -> metric -> value, of the replicas that answered a few requests."""
    found = {}
    for _ in range(12):
        lines = httpx2.get(f"{url}/metrics", headers=KEY).text.splitlines()
        for line in lines:
            name, _, rest = line.partition('{replica="')
            if rest and '",' not in rest:
                replica, _, value = rest.partition('"} ')
                found.setdefault(replica, {})[name.removeprefix("draftwood:")] = float(value)
    return found


def both_answer(url):
    try:
        return len(metrics(url)) == 2
    except httpx2.HTTPError:
        return False


def check_lost(url, streams):
    """Finished texts are right; the others began right, ended with an error, and are right when they are wanted again."""
    for stream in streams:
        stream.thread.join(120)
        text = whole(url, stream.seed)
        assert stream.done != (stream.error is not None), "a stream that ended in silence"
        assert text.startswith(stream.text)
        assert not stream.done or stream.text == text
    assert any(stream.done for stream in streams)
    assert any(stream.error is not None for stream in streams), "nothing was lost"


def test_a_seed_gives_one_text_alone_in_company_and_streamed(url):
    assert both_answer(url)
    texts = {seed: whole(url, seed) for seed in range(4)}
    streams = [Stream(url, seed % 4) for seed in range(16)]
    for stream in streams:
        stream.thread.join(120)
        assert stream.done
        assert stream.text == texts[stream.seed]
    used = metrics(url)
    assert all(one["generation_tokens_total"] > 0 for one in used.values()), used


def test_errors_have_one_shape_and_keys_are_wanted(url):
    bad = httpx2.post(f"{url}/v1/completions", json=body(1, max_tokens=-3), headers=KEY)
    assert bad.status_code == 400
    check_error(bad.json())
    without = httpx2.post(f"{url}/v1/completions", json=body(1))
    assert without.status_code == 401
    check_error(without.json())
    traced = httpx2.post(f"{url}/v1/completions", json=body(1, trace=True), headers=KEY)
    assert "without replicas" in traced.json()["error"]["message"]


def test_clients_that_leave_free_their_rows(url):
    for _ in range(40):
        sent = {"json": body(1, stream=True, max_tokens=2000), "headers": KEY}
        with httpx2.stream("POST", f"{url}/v1/completions", **sent) as response, closing(response.iter_lines()) as lines:
            next(lines)
    until(lambda: all(not one["num_requests_running"] + one["num_requests_waiting"] for one in metrics(url).values()), 60.0)


def test_the_first_token_waits_for_nothing(url):
    """Pieces come one by one, not in bursts. Other processes may hold one stream up; a burst holds up all."""

    def times():
        began = time.perf_counter()
        with httpx2.stream("POST", f"{url}/v1/completions", json=body(1, stream=True), headers=KEY) as response:
            return [time.perf_counter() - began for line in response.iter_lines() if line]

    def even(times):
        assert len(times) > 20
        most = max(after - before for before, after in pairwise(times))
        return times[0] < times[-1] / 4 and most < times[-1] / 2

    assert any(even(times()) for _ in range(5))


def test_a_replica_that_is_killed_costs_its_streams_and_no_text(url, capfd):
    streams = [Stream(url, seed) for seed in range(8)]
    until(lambda: all(stream.chunks > 2 for stream in streams))
    os.kill(workers(REPLICA)[0], signal.SIGKILL)
    check_lost(url, streams)
    until(lambda: both_answer(url), 120.0)
    assert capfd.readouterr().err.count("Traceback") == 0


def test_a_raylet_that_is_lost_costs_its_streams_and_no_text(cluster, url):
    streams = [Stream(url, seed) for seed in range(8)]
    until(lambda: all(stream.chunks > 2 for stream in streams))
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    check_lost(url, streams)
    cluster.add_node(num_cpus=1)
    until(lambda: both_answer(url), 180.0)


# Files ------------------------------------------------------------------------------------------------------------------


def command(*arguments):
    line = [sys.executable, "-m", "draftwood", "ray", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def alone(cluster):
    """The address of the cluster, without replicas."""
    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()
    yield cluster.address
    ray.shutdown()


@pytest.mark.parametrize("kill", [False, True])
def test_a_file_is_what_one_process_writes_though_a_writer_dies(alone, folders, prompts, generated, tmp_path, kill):
    out = tmp_path / "out.jsonl"
    models = ["--target", folders[0], "--draft", folders[1], "--threads", 1, "--batch-size", 1]
    begun = command("write", *models, *OPTIONS, "--input", prompts, "--output", out, "--address", alone, "--replicas", 2)
    if kill:
        until(lambda: len(workers(WRITER)) == 2, 60.0)
        until(lambda: out.exists() and out.stat().st_size > 0, 60.0)
        os.kill(workers(WRITER)[0], signal.SIGKILL)
    said = begun.communicate(timeout=180)[1]
    assert begun.returncode == 1, said  # one line is none
    assert "Line 6: there is no prompt" in said
    assert "Traceback" not in said
    assert records(out) == generated


def test_a_stopped_job_is_resumed(alone, folders, prompts, generated, tmp_path):
    out = tmp_path / "out.jsonl"
    models = ["--target", folders[0], "--draft", folders[1], "--threads", 1, "--batch-size", 1]
    line = ["write", *models, *OPTIONS, "--input", prompts, "--output", out, "--address", alone]
    first = command(*line)
    until(lambda: out.exists() and out.stat().st_size > 0, 90.0)
    first.send_signal(signal.SIGINT)
    assert "the same command resumes there" in first.communicate(timeout=60)[1]
    assert 0 < len(records(out)) < 30
    kept = out.read_bytes()
    assert "temperature 0.9, which is now 0.5" in draftwood("ray", *line, "--temperature", "0.5").stderr
    assert out.read_bytes() == kept
    second = command(*line)
    said = second.communicate(timeout=180)[1]
    assert records(out) == generated, said
    assert out.read_bytes().startswith(kept)


def test_bad_datasets_are_refused(alone, spec):
    ray.init(address=alone, log_to_driver=False)
    rows = ray.data.from_items([{"id": i % 3, "prompt": "the fox"} for i in range(5)])
    with pytest.raises(ConfigError, match="ids repeat in column 'id', such as 0"):
        write(rows, spec(), WriteSettings())
    with pytest.raises(ConfigError, match="no column 'text' for the prompts: it has 'id', 'prompt'"):
        write(rows, spec(), WriteSettings(prompt="text"))
    good = write(rows.limit(3), spec(), WriteSettings(limits={"max_new_tokens": 4}))
    found = {row["id"]: row for row in good.take_all()}
    assert {0, 1, 2} == found.keys()
    assert all(0 < len(row["token_ids"]) <= 4 and row["finish_reason"] and not row["error"] for row in found.values())


def test_a_model_that_no_node_has_and_more_than_there_is(alone, prompts, tmp_path):
    line = ["--input", prompts, "--output", tmp_path / "out.jsonl", "--address", alone]
    begun = command("write", "--target", "/nowhere", *line)
    said = begun.communicate(timeout=120)[1]
    assert said.splitlines()[-1].startswith(f"Error: on node {os.uname().nodename}: there is no folder '/nowhere'")
    assert "Traceback" not in said
    begun = command("serve", "--target", "/nowhere", "--address", alone, "--port", PORT)
    said = begun.communicate(timeout=120)[1]
    assert said.splitlines()[-1].startswith(f"Error: on node {os.uname().nodename}: there is no folder '/nowhere'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.ray.cluster.JOIN_SECONDS", 0.0)
        with pytest.raises(ConfigError, match="replicas is 3"), connected(Fleet(replicas=3, address=alone)):
            pass


def test_the_command_serves_until_a_signal_and_lets_texts_end(alone, folders):
    models = ["--target", folders[0], "--draft", folders[1], "--backend", "torch", "--dtype", "float32"]
    server = command("serve", *models, "--address", alone, "--port", PORT, "--replicas", 2)
    assert server.stderr is not None
    line = next(line for line in server.stderr if "Serving target" in line)
    url = line.split(" at ")[1].strip().removesuffix("/v1")
    text = whole(url, 3)
    stream = Stream(url, 3)
    until(lambda: stream.chunks > 1)
    server.send_signal(signal.SIGTERM)
    stream.thread.join(60)
    assert stream.error is None
    assert stream.text == text
    said = server.communicate(timeout=120)[1]
    assert server.returncode == 0, said
    assert "Traceback" not in said


def test_without_a_key_a_replica_refuses_an_address_that_others_reach(alone, spec):
    ray.init(address=alone, log_to_driver=False)
    serve.start(http_options={"host": "0.0.0.0", "port": PORT, "location": "HeadOnly"})
    with pytest.raises(RuntimeError):
        serve.run(app(spec()), name="open")
    assert "can be reached from other machines" in str(serve.status().applications["open"])
    serve.shutdown()
