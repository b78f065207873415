"""Replicas and writers in this process, and sentences for bad input. ``test_raylets.py`` has the cluster."""

import asyncio
import json
import os
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from draftwood import ConfigError, DraftwoodError, ModelError
from draftwood.ray import ReplicaSpec, Writer, WriteSettings, app, build
from draftwood.ray.cluster import Fleet, connected, sentence_of
from draftwood.ray.replica import Replica
from draftwood.serve.decoding.metrics import Metrics, render
from draftwood.serve.http.settings import ServeOptions
from tests.ray.conftest import SETTINGS, draftwood

serve = pytest.importorskip("ray.serve", reason='needs ray: pip install ".[ray]"')
EXAMPLES = Path(__file__).parents[2] / "examples" / "ray"


# Replicas ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def handle(spec):
    """A replica in Ray's local testing mode: all of Ray Serve but its processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_LOG_TO_STDERR", "0")
        yield serve.run(app(spec(serving=ServeOptions(name=("tiny",)))), name="local", _local_testing_mode=True)


CAME = []
SENT = []


async def receive():
    return CAME.pop() if CAME else await asyncio.sleep(600, {"type": "http.disconnect"})


async def send(message):
    SENT.append(message)


def answer_of(handle, path, body=None):
    """Status and body of the answer to a request that comes through the deployment's handle, which copies arguments."""
    SENT.clear()
    CAME[:] = [{"type": "http.request", "body": json.dumps(body).encode() if body else b"", "more_body": False}]
    scope = {"type": "http", "method": "POST" if body else "GET", "path": path, "query_string": b""}
    scope["headers"] = [(b"content-type", b"application/json")]
    handle.remote(scope, receive, send).result()
    return SENT[0]["status"], b"".join(part.get("body", b"") for part in SENT).decode()


def test_a_replica_answers_and_streams_the_same_text(handle):
    body = {"prompt": "the fox ran", "seed": 7, "max_tokens": 12}
    status, whole = answer_of(handle, "/v1/completions", body)
    assert status == 200, whole
    parts = answer_of(handle, "/v1/completions", body | {"stream": True})[1].split("\n\n")
    streamed = [json.loads(part.removeprefix("data: ")) for part in parts if part.startswith("data: {")]
    assert "".join(part["choices"][0]["text"] for part in streamed) == json.loads(whole)["choices"][0]["text"] != ""
    assert answer_of(handle, "/v1/completions", body | {"max_tokens": -3})[0] == 400


def test_a_replica_whose_scheduler_has_stopped_is_not_healthy(spec):
    async def stopped():
        replica = Replica.__new__(Replica)
        await replica.__init__(spec())  # as Ray does it
        made = await replica.__serve_build_asgi_app__()
        async with made.router.lifespan_context(made):
            replica.check_health()
        return replica

    with pytest.raises(RuntimeError, match="the scheduler is stopped"):
        asyncio.run(stopped()).check_health()


def test_several_replicas_keep_no_traces_and_have_a_label(spec):
    def traces(**scale):
        [bound] = app(spec(), **scale)._bound_deployment.init_args
        return bound.serving.max_traces

    assert (traces(), traces(replicas=2), traces(autoscaling={"max_replicas": 3})) == (16, 0, 0)
    made = Metrics("replica").of("one")
    made.count("request_success", 1, "stop")
    made.watch(num_requests_running=lambda: 2)
    lines = render(made).decode().splitlines()
    assert 'draftwood:request_success_total{finished_reason="stop",replica="one"} 1.0' in lines
    assert 'draftwood:num_requests_running{replica="one"} 2.0' in lines
    assert "replica" not in render(Metrics()).decode()


def test_the_deployment_holds_what_the_server_holds(spec):
    options = ServeOptions(max_rows=3, max_queue=5, drain=7.0)
    made = app(spec(serving=options), cpus=2, gpus=1, autoscaling={"min_replicas": 2, "max_replicas": 4})._bound_deployment
    assert made.ray_actor_options == {"num_cpus": 2, "num_gpus": 1}
    assert made.max_ongoing_requests > 8  # requests that are refused get through
    config = made._deployment_config
    assert (config.graceful_shutdown_timeout_s, config.autoscaling_config.target_ongoing_requests) == (7.0, 3)


# Writers ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def writer(spec):
    return Writer(spec(), SETTINGS)


def rows_of(prompts):
    lines = [json.loads(line) for line in prompts.read_text().splitlines()]
    return [{"index": i, "prompt": line.get("prompt"), "seed": line.get("seed")} for i, line in enumerate(lines)]


def batches(rows, size):
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield {name: np.array([row[name] for row in part], dtype=None if name == "index" else object) for name in rows[0]}


@pytest.mark.parametrize("size", [1, 7, 30])
def test_texts_are_those_of_one_process_in_blocks_of_any_size_and_order(writer, prompts, generated, size):
    rows = rows_of(prompts)
    np.random.default_rng(size).shuffle(rows)
    made = [writer(batch) for batch in batches(rows, size)]
    found = {
        int(index): (text, tokens.tolist(), reason, error)
        for one in made
        for index, text, tokens, reason, error in zip(
            *(one[name] for name in ("index", "text", "token_ids", "finish_reason", "error")), strict=True
        )
    }
    assert len(found) == 30
    assert "prompt is None" in found.pop(5)[3]
    for index, (text, tokens, reason, error) in found.items():
        one = generated[index]
        assert (text, tokens, reason, error) == (one["text"], one["token_ids"], one["finish_reason"], "")
    assert json.loads(made[0]["record"][0])["engine"] == "torch"


def test_a_seed_follows_from_job_and_id_alone():
    made = WriteSettings(seed=5)
    assert (made.seed_of(3), made.seed_of(3, float("nan")), made.seed_of(3, 9), made.seed_of(3, 9.0)) == (8, 8, 9, 9)
    assert made.seed_of("a") != made.seed_of("b")
    assert made.seed_of("a") == WriteSettings(seed=4).seed_of("a") + 1
    for bad in (None, 1.5, True, -9):
        with pytest.raises(ConfigError, match=r"id|seed"):
            made.seed_of(bad)


def test_a_text_that_fails_while_it_is_written_costs_its_own_row(writer, monkeypatch):
    from draftwood import NumericsError
    from draftwood.engine.decode import Decoder

    whole = Decoder.results

    def results(self, requests, *args, **more):
        if any(request.seed == 12 for request in requests):
            raise NumericsError("scores are NaN")
        yield from whole(self, requests, *args, **more)

    monkeypatch.setattr(Decoder, "results", results)
    made = writer({"index": np.arange(3), "prompt": np.array(["the fox"] * 3, dtype=object)})
    assert made["error"].tolist() == ["", "scores are NaN", ""]
    assert all(bool(text) != bool(error) for text, error in zip(made["text"], made["error"], strict=True))


# Bad input --------------------------------------------------------------------------------------------------------------


def test_a_model_that_a_process_lacks_is_named_with_the_node(spec):
    writer = Writer(spec(target="/nowhere/model", draft=None), SETTINGS)
    for _ in range(2):
        with pytest.raises(ModelError, match=rf"^on node {socket.gethostname()}: .*'/nowhere/model'"):
            writer({"index": np.arange(1), "prompt": np.array(["x"])})


def test_settings_that_the_models_refuse_name_the_node(spec):
    writer = Writer(spec(), replace(SETTINGS, sampling={"temperature": -1.0}))
    with pytest.raises(ConfigError, match=r"^on node .*temperature"):
        writer({"index": np.arange(1), "prompt": np.array(["x"])})


def test_a_missing_column_is_named(writer):
    with pytest.raises(ConfigError, match="no column 'prompt' for the prompts: it has 'index', 'text'"):
        writer({"index": np.arange(1), "text": np.array(["x"])})
    with pytest.raises(ConfigError, match="a column 'text' already"):
        writer({"index": np.arange(1), "prompt": np.array(["x"]), "text": np.array(["x"])})


def test_names_travel_in_full(folders, monkeypatch):
    monkeypatch.chdir(folders[0].parent)
    assert ReplicaSpec(target="target", draft="smollm2").target == str(folders[0])
    assert ReplicaSpec(target="smollm2").target == "smollm2"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Fleet(replicas=3, cpus=2), "replicas is 3 with 2 CPUs each, but the cluster has 5 CPUs, at most 3 on one node"),
        (Fleet(cpus=4), "replicas is 1 with 4 CPUs each"),
        (Fleet(gpus=1), "the cluster has 0 GPUs"),
    ],
)
def test_more_than_the_cluster_has_is_refused(wanted, said):
    with pytest.raises(ConfigError, match=said):
        wanted.check([{"CPU": 2.0}, {"CPU": 3.0}])
    Fleet(replicas=2, cpus=2).check([{"CPU": 2.0}, {"CPU": 3.0}])
    Fleet(replicas=3, cpus=0.1).check([{"CPU": 0.3}])
    Fleet(replicas=40, cpus=0.125).check([{"CPU": 2.0}, {"CPU": 3.0}])
    Fleet(replicas=9, cpus=0).check([])


def test_an_address_at_which_nobody_answers_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for given in (address, f"ray://{address}"):
        with pytest.raises(ConfigError, match=f"nobody answers at {given}"), connected(Fleet(address=given)):
            pass


def test_without_ray_the_extra_is_named(monkeypatch, prompts, tmp_path):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    for command in (["serve"], ["write", "--input", prompts, "--output", tmp_path / "out.jsonl"]):
        result = draftwood("ray", *command)
        assert result.exit_code == 2
        assert 'pip install ".[ray]"' in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["serve", "--host", "0.0.0.0"], "can be reached from other machines, and there is no key"),
        (["serve", "--port", "0"], "port is 0"),
        (["serve", "--replicas", "0"], "replicas is 0"),
        (["write"], "there is no prompt"),
        (["write", "--input", "{prompts}"], "there is no --output"),
    ],
)
def test_what_a_command_cannot_do_is_one_sentence(options, said, prompts):
    result = draftwood("ray", *(option.format(prompts=prompts) for option in options))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_report_of_ray_ends_in_our_own_words():
    report = "ray::x() (pid=1)\n  File a\ndraftwood.core.errors.ModelError: on node a: there is no folder\nmore"
    assert str(sentence_of(report)) == "on node a: there is no folder"
    assert isinstance(sentence_of(report), DraftwoodError)
    assert sentence_of("another error") is None


# Files of examples/ray ----------------------------------------------------------------------------------------------------


def test_the_service_of_kuberay_makes_an_application():
    service = yaml.safe_load((EXAMPLES / "rayservice.yaml").read_text())
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    assert getattr(__import__(module, fromlist=[name]), name) is build
    made = build(application["args"])._bound_deployment
    assert made.init_args[0].serving.api_key_file is not None
    groups = [service["spec"]["rayClusterConfig"]["headGroupSpec"], *service["spec"]["rayClusterConfig"]["workerGroupSpecs"]]
    for group in groups:
        [container] = group["template"]["spec"]["containers"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    workers = groups[1]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert made.ray_actor_options["num_cpus"] <= int(workers["cpu"])


@pytest.mark.parametrize(("given", "names"), [("fox", ("fox",)), (["fox", "hen"], ("fox", "hen")), (None, ())])
def test_a_configuration_names_a_model_once_or_several_times(given, names):
    assert build({"serving": {"name": given}})._bound_deployment.init_args[0].serving.name == names


def test_wrong_arguments_of_a_configuration_are_named():
    with pytest.raises(ConfigError, match="args hold 'replica'"):
        build({"replica": 2})
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        build({"serving": {"host": "0.0.0.0"}})
    with pytest.raises(ConfigError, match="autoscaling chooses their number"):
        build({"replicas": 2, "autoscaling": {}})


def test_compose_has_one_gateway_and_two_replicas_of_one_image():
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]
    assert services.keys() == {"gateway", "replica"}
    assert services["replica"]["deploy"]["replicas"] == 2
    assert services["gateway"]["image"] == services["replica"]["image"]
    assert services["gateway"]["build"]["dockerfile"] == "examples/ray/Containerfile"
    image = (EXAMPLES / "Containerfile").read_text()
    assert "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING=0" in image
    command = services["gateway"]["command"][-1]
    line = shlex.split(command.partition("exec draftwood ")[2])
    assert line[:2] == ["ray", "serve"]
    assert draftwood(*line, "--help").exit_code == 0  # all of its options exist
    assert draftwood(*line, "--replica", "--help").exit_code == 2
    assert "--replicas 2" in command
    assert os.path.basename(services["gateway"]["secrets"][0]) in command
