"""Which library runs a pair: chosen by name or by itself, seen wherever a text is shown, and never mixed in profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import draftwood
from benchmarks.__main__ import main as benchmarks
from benchmarks.opening import with_draft
from draftwood import Limits, LoadOptions, Method, Request, Sampling
from draftwood.core.errors import ConfigError
from draftwood.loading import profile
from draftwood.runners.auto import VARIABLE
from tests.cli.conftest import Run

pytest.importorskip("openvino")
from draftwood.runners.openvino.runner import OpenVinoRunner


def load(models: Path, **options) -> draftwood.Pair:
    return draftwood.load(models / "target", models / "draft", options=LoadOptions(**options))


def test_a_backend_that_is_named_is_taken_or_refused(models):
    pair = load(models, backend="openvino")
    assert isinstance(pair.target, OpenVinoRunner)
    assert isinstance(pair.draft, OpenVinoRunner)
    with pytest.raises(ConfigError, match="dtype float64 is impossible with OpenVINO"):
        load(models, backend="openvino", dtype="float64")
    with pytest.raises(ConfigError, match="weights 'int8' are for OpenVINO: add --backend openvino"):
        load(models, weights="int8")


def test_a_device_of_openvinos_is_taken_or_refused(models):
    pair = load(models, backend="openvino", device="openvino:CPU")
    assert pair.target.engine == "openvino"
    assert pair.target.network._compiled.compiled.get_property("EXECUTION_DEVICES") == ["CPU"]
    with pytest.raises(ConfigError, match=r"no device 'FPGA' here, only CPU.*: use --device openvino:CPU"):
        load(models, backend="openvino", device="openvino:FPGA")
    with pytest.raises(ConfigError, match="device 'openvino:CPU' is for OpenVINO: add --backend openvino"):
        load(models, backend="torch", device="openvino:CPU")
    with pytest.raises(ConfigError, match="OpenVINO runs translation models on its CPU only"):
        draftwood.load_translator(options=LoadOptions(backend="openvino", device="openvino:GPU"))


@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_other_models_are_run_in_the_same_way(models, name):
    pair = load(models, backend=name)
    made = with_draft(pair, pair.draft_model)
    assert {made.target.engine, made.draft.engine} == {name}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("name", "inside"), [("torch", 2), ("openvino", 1)])
def test_pytorch_computes_on_one_thread_beside_another_engine_and_only_in_its_rounds(models, name, inside):
    seen: list[int] = []

    def criterion(tokens):
        seen.append(torch.get_num_threads())
        if len(seen) > 3:
            raise RuntimeError("enough")
        return False

    decoder = load(models, backend=name).decoder(Method(method="ar"))
    request = Request(prompt=[5, 6], limits=Limits(max_new_tokens=8), criterion=criterion)
    stream = decoder.stream([request], Sampling())
    next(stream)
    assert torch.get_num_threads() == 2
    stream.close()
    assert torch.get_num_threads() == 2
    stream = decoder.stream([request], Sampling())
    next(stream)
    torch.set_num_threads(3)  # the user's own, between two rounds
    next(stream)
    assert torch.get_num_threads() == 3
    with pytest.raises(RuntimeError, match="enough"):
        next(stream)
    assert torch.get_num_threads() == 3
    assert seen == ([2, 2, 3, 3] if inside == 2 else [1] * 4)


def test_a_pair_says_what_runs_it(models):
    assert repr(load(models)).count(" by torch>") == 2
    assert repr(load(models, backend="openvino")).count("float32 on cpu by openvino>") == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [Method(method="shared-noise", nodes=6), Method(method="rsd-s"), Method(method="ngram")])
def test_texts_are_the_same_with_both(models, method, temperature):
    sampling, limits = Sampling(temperature=temperature), Limits(max_new_tokens=40)
    texts = []
    for name in ("torch", "openvino"):
        found = load(models, backend=name).generate(
            ["the fox", "a dog and", "once"], method=method, sampling=sampling, limits=limits, seed=4
        )
        texts.append([result.token_ids for result in found])
    assert texts[0] == texts[1]


def test_the_bundled_pair_writes_the_same_greedy_text():
    texts = []
    for name in ("torch", "openvino"):
        pair = draftwood.load(options=LoadOptions(backend=name, profile="none"))
        found = pair.generate("Once upon a time", sampling=Sampling(temperature=0.0), limits=Limits(max_new_tokens=96))
        texts.append(found.text)
    assert texts[0] == texts[1]


def test_a_profile_of_one_backend_is_not_used_by_the_other(models, monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    pair = load(models, backend="openvino")
    assert pair.profile_key is not None
    path = profile.default_path(pair.profile_key)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(profile.document(pair.profile_key, {1.0: Method(method="chain", shape="3")}, {})))
    assert load(models, backend="openvino").method().method == "chain"
    with pytest.warns(UserWarning, match=r"was measured with engine 'openvino', but here it is 'torch', so the default"):
        assert load(models).profile is None
    assert load(models, profile="none").profile is None
    with pytest.raises(ConfigError, match="there engine is 'openvino', here 'torch'"):
        load(models, profile=str(path))
    assert profile.why_not(profile.read(path)) is None
    monkeypatch.setattr(profile, "version_of", lambda package: None)
    assert profile.why_not(profile.read(path)) == "OpenVINO is not installed here"


def test_generate_tells_in_json_and_in_the_closing_line(run: Run, pair, prompts, tmp_path):
    command = ["generate", *pair, "--max-new-tokens", 8, "--seed", 1]
    for name in ("torch", "openvino"):
        found = json.loads(run(*command, "--backend", name, "--json", "the fox").stdout)
        assert (found["engine"], found["fallback"]) == (name, None)
        assert f" by {name}, " in run(*command, "--backend", name, "the fox").stderr
        out = tmp_path / f"{name}.jsonl"
        run(*command, "--backend", name, "--input", prompts, "--output", out)
        assert {json.loads(line)["engine"] for line in out.read_text().splitlines()} == {name}


def test_check_judges_openvinos_texts_by_the_model_itself(run: Run, pair):
    command = ["check", *pair, "--backend", "openvino", "--samples", 32, "--new-tokens", 20, "--json"]
    report = json.loads(run(*command).stdout)
    assert report["exact"]
    result = run(*command[:-1], "--weights", "int8")
    assert result.exit_code == 2
    assert "--weights is int8" in result.stderr


@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_bench_counts_the_forwards_of_either_backend(monkeypatch, run: Run, pair, tmp_path, name):
    monkeypatch.setenv(VARIABLE, "auto")  # has no say: what is measured is named
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the fox"}\n')
    arguments = ["generate", *pair, "--methods", "ar,generate,chain", "--budgets", 6, "--backend", name]
    arguments += ["--prompts", prompts, "--repeats", 1, "--prompts-per-source", 1, "--max-new-tokens", 4]
    arguments += ["--temperatures", "0", "--output", tmp_path]
    result = CliRunner().invoke(benchmarks, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "bench.json").read_text())
    assert {model["engine"] for model in document["models"].values()} == {name}
    assert ("openvino" in document["versions"]) or name == "torch"
    repeats = {r["method"]: r["repeats"][0] for r in document["results"]}
    assert repeats["ar"]["forwards"] == repeats["generate"]["forwards"]
    assert 0 < sum(repeats["chain"]["forwards"]) <= sum(repeats["ar"]["forwards"])
    assert all(0 < sum(r["target_seconds"]) < sum(r["seconds"]) for r in repeats.values())


def test_translators_take_either_and_no_rounded_weights(run: Run, monkeypatch):
    monkeypatch.setenv(VARIABLE, "auto")
    results = {}
    for name, backend in (("torch", "torch"), ("openvino", "auto")):
        result = run("translate", "--backend", backend, "--json", "Wo ist der Bahnhof?")
        results[name] = json.loads(result.stdout)
        assert (results[name]["engine"], results[name]["fallback"]) == (name, None)
        result = run("translate", "--backend", backend, "Wo ist der Bahnhof?")
        assert result.stdout == f"{results[name]['text']}\n"
        assert f" by {name}, " in result.stderr
    assert results["torch"]["token_ids"] == results["openvino"]["token_ids"]
    with pytest.raises(ConfigError, match="weights 'int8'"):
        draftwood.load_translator(options=LoadOptions(weights="int8"))


def test_threads_are_those_of_pytorch(models):
    pair = load(models, backend="openvino")
    compiled = pair.target.network._compiled.compiled
    assert compiled.get_property("INFERENCE_NUM_THREADS") == torch.get_num_threads()
    assert compiled.get_property("KV_CACHE_PRECISION").get_type_name() == "f32"
