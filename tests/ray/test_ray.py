"""Replicas and writers in this process, and sentences for bad input. ``test_raylets.py`` has the cluster."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from draftwood import ConfigError, DraftwoodError, ModelError
from draftwood.cli.job.cluster import Writer
from draftwood.cli.job.lines import Line
from draftwood.cli.prompts import read_prompts
from draftwood.cli.settings import Settings
from draftwood.ray import ReplicaSpec, app
from draftwood.ray.cluster import Fleet, connected, sentence_of
from draftwood.ray.replica import Replica
from draftwood.serve.metrics import Metrics
from draftwood.serve.settings import ServeOptions
from tests.ray.conftest import draftwood

serve = pytest.importorskip("ray.serve", reason='needs ray: pip install "draftwood[ray]"')
EXAMPLES = Path(__file__).parents[2] / "examples" / "ray"
MakeSpec = Callable[..., ReplicaSpec]
Records = dict[int, dict[str, Any]]


# Replicas ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def handle(spec: MakeSpec) -> Iterator[Any]:
    """A replica in Ray's local testing mode: all of Ray Serve but its processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_LOG_TO_STDERR", "0")
        yield serve.run(app(spec(serving=ServeOptions(name=("tiny",)))), name="local", _local_testing_mode=True)


CAME: list[dict[str, Any]] = []
SENT: list[dict[str, Any]] = []


async def receive() -> dict[str, Any]:
    return CAME.pop() if CAME else await asyncio.sleep(600, {"type": "http.disconnect"})


async def send(message: dict[str, Any]) -> None:
    SENT.append(message)


def answer_of(handle: Any, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Status and body of the answer to a request that comes through the deployment's handle, which copies arguments."""
    SENT.clear()
    CAME[:] = [{"type": "http.request", "body": json.dumps(body).encode() if body else b"", "more_body": False}]
    scope = {"type": "http", "method": "POST" if body else "GET", "path": path, "query_string": b""}
    scope["headers"] = [(b"content-type", b"application/json")]
    handle.remote(scope, receive, send).result()
    return SENT[0]["status"], b"".join(part.get("body", b"") for part in SENT).decode()


def test_a_replica_answers_and_streams_the_same_text(handle: Any) -> None:
    body = {"prompt": "the fox ran", "seed": 7, "max_tokens": 12}
    status, whole = answer_of(handle, "/v1/completions", body)
    assert status == 200, whole
    parts = answer_of(handle, "/v1/completions", body | {"stream": True})[1].split("\n\n")
    streamed = [json.loads(part.removeprefix("data: ")) for part in parts if part.startswith("data: {")]
    assert "".join(part["choices"][0]["text"] for part in streamed) == json.loads(whole)["choices"][0]["text"] != ""
    assert answer_of(handle, "/v1/completions", body | {"max_tokens": -3})[0] == 400
    assert handle.check_health.remote().result() is None


def test_a_replica_whose_scheduler_has_stopped_is_not_healthy(spec: MakeSpec) -> None:
    async def stopped() -> Replica:
        replica = Replica.__new__(Replica)
        await replica.__init__(spec())  # type: ignore[misc]  # as Ray does it
        made = await replica.__serve_build_asgi_app__()
        async with made.router.lifespan_context(made):
            replica.check_health()
        return replica

    with pytest.raises(RuntimeError, match="the scheduler is stopped"):
        asyncio.run(stopped()).check_health()


def test_several_replicas_keep_no_traces_and_have_a_label(spec: MakeSpec) -> None:
    def traces(**scale: Any) -> int:
        [bound] = app(spec(), **scale)._bound_deployment.init_args
        return bound.serving.max_traces

    assert (traces(), traces(replicas=2), traces(autoscaling={"max_replicas": 3})) == (16, 0, 0)
    made = Metrics("one")
    made.count("request_success", 1, "stop")
    made.watch(num_requests_running=lambda: 2)
    lines = made.render().decode().splitlines()
    assert 'draftwood:request_success_total{finished_reason="stop",replica="one"} 1.0' in lines
    assert 'draftwood:num_requests_running{replica="one"} 2.0' in lines
    assert "replica" not in Metrics().render().decode()


def test_the_deployment_holds_what_the_server_holds(spec: MakeSpec) -> None:
    options = ServeOptions(max_rows=3, max_queue=5, drain=7.0)
    made = app(spec(serving=options), cpus=2, gpus=1, autoscaling={"min_replicas": 2, "max_replicas": 4})._bound_deployment
    assert made.ray_actor_options == {"num_cpus": 2, "num_gpus": 1}
    assert made.max_ongoing_requests > 8  # requests that are refused get through
    config = made._deployment_config
    assert (config.graceful_shutdown_timeout_s, config.autoscaling_config.target_ongoing_requests) == (7.0, 3)


# Writers ----------------------------------------------------------------------------------------------------------------


WRITTEN = {"method": "shared-noise", "shape": "2-2", "max_new_tokens": 12, "temperature": 0.9, "batch_size": 4}


def writer_of(spec: ReplicaSpec, **options: Any) -> Writer:
    return Writer(spec, Settings.of(options, frozenset(options)), 11)


@pytest.fixture(scope="module")
def writer(spec: MakeSpec) -> Writer:
    return writer_of(spec(), **WRITTEN)


def records_of(writer: Writer, lines: list[Line]) -> list[dict[str, Any]]:
    return [json.loads(record) for record in writer({"line": [json.dumps(asdict(line)) for line in lines]})["record"]]


@pytest.mark.parametrize("size", [1, 7, 30])
def test_texts_are_those_of_one_process_in_blocks_of_any_size_and_order(
    writer: Writer, prompts: Path, generated: Records, size: int
) -> None:
    lines = read_prompts(prompts)
    np.random.default_rng(size).shuffle(lines)  # type: ignore[arg-type]
    found = [record for i in range(0, 30, size) for record in records_of(writer, lines[i : i + size])]
    for record in found:
        wanted = generated[record["index"]]
        assert record.keys() - {"stats"} == wanted.keys()
        names = (
            ["error", "source", "id"]
            if record["index"] == 5
            else ["text", "token_ids", "finish_reason", "seed", "id", "engine"]
        )
        assert all(record.get(name) == wanted.get(name) for name in names)
    assert len(found) == 30


# Bad input --------------------------------------------------------------------------------------------------------------


def test_a_model_that_a_process_lacks_and_settings_that_models_refuse_are_named_with_the_node(spec: MakeSpec) -> None:
    made = writer_of(spec(target="/nowhere/model", draft=None), **WRITTEN)
    for _ in range(2):
        with pytest.raises(ModelError, match=rf"^on node {socket.gethostname()}: .*'/nowhere/model'"):
            made({"line": []})
    with pytest.raises(DraftwoodError, match=r"^on node .*method 'block'"):
        writer_of(spec(), method="block", temperature=0.0)({"line": []})


def test_names_travel_in_full(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_more_than_the_cluster_has_is_refused(wanted: Fleet, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        wanted.check([{"CPU": 2.0}, {"CPU": 3.0}])
    Fleet(replicas=2, cpus=2).check([{"CPU": 2.0}, {"CPU": 3.0}])
    Fleet(replicas=3, cpus=0.1).check([{"CPU": 0.3}])
    Fleet(replicas=40, cpus=0.125).check([{"CPU": 2.0}, {"CPU": 3.0}])
    Fleet(replicas=9, cpus=0).check([])


def test_an_address_at_which_nobody_answers_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for given in (address, f"ray://{address}"):
        with pytest.raises(ConfigError, match=f"nobody answers at {given}"), connected(Fleet(address=given)):
            pass


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray.data", None)
    for command in (["serve"], ["write", "--input", prompts, "--output", tmp_path / "out.jsonl"]):
        result = draftwood("ray", *command)
        assert result.exit_code == 2
        assert 'pip install "draftwood[ray]"' in result.stderr


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
def test_what_a_command_cannot_do_is_one_sentence(options: list[str], said: str, prompts: Path) -> None:
    result = draftwood("ray", *(option.format(prompts=prompts) for option in options))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_report_of_ray_ends_in_our_own_words() -> None:
    report = "ray::x() (pid=1)\n  File a\ndraftwood.core.errors.ModelError: on node a: there is no folder\nmore"
    assert str(sentence_of(report)) == "on node a: there is no folder"
    assert isinstance(sentence_of(report), DraftwoodError)
    assert sentence_of("another error") is None


# Files of examples/ray ----------------------------------------------------------------------------------------------------


def test_the_service_of_kuberay_names_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    service = yaml.safe_load((EXAMPLES / "rayservice.yaml").read_text())
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    monkeypatch.syspath_prepend(EXAMPLES)
    module, _, name = application["import_path"].partition(":")
    made = getattr(import_module(module), name)._bound_deployment
    assert made.init_args[0].serving.api_key_file is not None
    [workers] = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert made.ray_actor_options["num_cpus"] <= int(limits["cpu"])


def test_a_number_of_replicas_and_autoscaling_exclude_each_other(spec: MakeSpec) -> None:
    with pytest.raises(ConfigError, match="autoscaling chooses their number"):
        app(spec(), replicas=2, autoscaling={})


def test_compose_has_one_gateway_and_two_replicas_of_one_image() -> None:
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]
    assert services.keys() == {"gateway", "replica"}
    assert services["gateway"]["image"] == services["replica"]["image"]
    assert "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING=0" in (EXAMPLES / "Containerfile").read_text()
    line = shlex.split(services["gateway"]["command"][-1].partition("exec draftwood ")[2])
    assert int(line[line.index("--replicas") + 1]) == services["replica"]["deploy"]["replicas"]
    assert draftwood(*line, "--help").exit_code == 0  # all of its options exist
    assert draftwood(*line, "--replica", "--help").exit_code == 2
