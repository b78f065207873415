"""Which library runs a pair: chosen by name or by itself, seen wherever a text is shown, and never mixed in profiles."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

import draftwood
from benchmarks.opening import with_draft
from draftwood import Limits, LoadOptions, Method, Pair, Request, Sampling
from draftwood.core.errors import ConfigError, ModelError
from draftwood.engine.knowledge import default_path, read, save
from draftwood.hardware import machine
from draftwood.hardware.machine import available_memory
from draftwood.loading import profile
from draftwood.loading.models import choose_dtype
from draftwood.native import library
from draftwood.runners import backends, torch_runner
from draftwood.runners.backends import VARIABLE, why_no_room, why_not_native

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module", autouse=True)
def _auto():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "auto")
        yield


def load(models, **options):
    return draftwood.load(models / "target", models / "draft", options=LoadOptions(**options))


def engines(pair):
    return [runner.engine.split()[0] for runner in (pair.target, pair.draft)]


@pytest.fixture(scope="module")
def pairs(models):
    """The pair by both libraries; the native engine is what ``auto`` takes."""
    return {"torch": load(models, backend="torch"), "native": load(models)}


def broken(monkeypatch):
    """The native engine runs everything except drafts."""
    inner = backends.NativeRunner

    def runner(model, *, drafts=False, **options):
        if drafts:
            raise ModelError("it is of an odd make")
        return inner(model, drafts=drafts, **options)

    monkeypatch.setattr(backends, "NativeRunner", runner)


def test_auto_is_native_on_a_cpu_and_the_number_format_is_the_same(pairs):
    for name, pair in pairs.items():
        assert (engines(pair), pair.engine.fallback) == ([name] * 2, None)
        assert repr(pair).count(f"float32 on cpu by {name}") == 2
        assert pair.target.model.dtype == choose_dtype("auto", torch.device("cpu")) == torch.float32
        made = with_draft(pair, pair.draft_model)
        assert engines(made) == [name] * 2


def test_the_backend_of_the_environment_is_one_that_there_is_and_an_option_comes_before_it(models, monkeypatch):
    monkeypatch.setenv(VARIABLE, "openvino")  # it was a backend
    for call in (lambda: load(models), draftwood.load_translator):
        with pytest.raises(
            ConfigError, match="DRAFTWOOD_BACKEND is 'openvino': set it to one of auto, native, torch, or unset it"
        ):
            call()
    assert engines(load(models, backend="torch")) == ["torch"] * 2


@pytest.mark.parametrize(("name", "inside"), [("torch", 2), ("native", 1)])
def test_pytorch_computes_on_one_thread_beside_another_engine_and_only_in_its_rounds(pairs, name, inside):
    torch.set_num_threads(2)
    seen = []

    def criterion(tokens):
        seen.append(torch.get_num_threads())
        if len(seen) > 3:
            raise RuntimeError("enough")
        return False

    decoder = pairs[name].decoder(Method(method="ar"))
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


def test_other_reasons_for_pytorch(models, monkeypatch):
    assert why_not_native(torch.device("cpu")) is None
    assert why_not_native(torch.device("cuda:1")) == "the models are on cuda:1"
    monkeypatch.setattr(backends, "why_missing", lambda: "it was not compiled")
    pair = load(models)
    reason = "the native engine does not run the models (it was not compiled)"
    assert (engines(pair), pair.engine.fallback) == (["torch"] * 2, reason)


def test_an_error_of_the_models_themselves_is_raised(models, monkeypatch):
    def refuse(model, **options):
        raise ModelError("nobody can run it")

    for module, runner in ((backends, "NativeRunner"), (torch_runner, "TorchRunner")):
        monkeypatch.setattr(module, runner, refuse)
    with pytest.raises(ModelError, match="nobody can run it"):
        load(models)


def test_live_models_stay_with_pytorch(models):
    loaded = draftwood.load(models / "target", models / "draft")
    pair = Pair(loaded.target.model, loaded.draft.model, loaded.tokenizer)
    assert (engines(pair), pair.engine.fallback) == (["torch"] * 2, None)
    before = pair.generate("the fox", sampling=GREEDY, limits=Limits(max_new_tokens=8)).token_ids
    with torch.no_grad():
        pair.target.model.get_output_embeddings().weight.neg_()
    assert pair.generate("the fox", sampling=GREEDY, limits=Limits(max_new_tokens=8)).token_ids != before
    assert loaded.generate("the fox", sampling=GREEDY, limits=Limits(max_new_tokens=8)).token_ids == before  # a copy


# ---- memory ----


def model_of(dtype, device="cpu"):
    weights = [torch.zeros(1000, dtype=dtype, device=device)]
    return SimpleNamespace(parameters=lambda: weights, dtype=dtype)


@pytest.mark.parametrize(("dtype", "needed"), [(torch.float32, 4800), (torch.bfloat16, 2400)])
def test_a_copy_in_memory_is_made_where_there_is_room(monkeypatch, dtype, needed):
    for room, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(backends, "available_memory", lambda room=room: room)
        assert (why_no_room([model_of(dtype)]) is None) == fits
    assert (why_no_room([model_of(dtype)] * 2) is None) is False


def test_where_nobody_says_how_much_memory_there_is_a_small_model_is_converted(monkeypatch):
    monkeypatch.setattr(backends, "available_memory", lambda: None)
    assert why_no_room([model_of(torch.float32)]) is None
    monkeypatch.setattr(backends, "_UNKNOWN", 100)
    assert "the available memory is unknown" in str(why_no_room([model_of(torch.float32)]))


def test_without_memory_for_a_copy_pytorch_runs_the_models(models, monkeypatch):
    monkeypatch.setattr(backends, "available_memory", lambda: 100_000)
    pair = load(models)
    assert engines(pair) == ["torch"] * 2
    reason = "does not run the models (its copy of the models would take about 0.0 GB of memory, and 0.0 GB are available)"
    assert pair.engine.fallback == f"the native engine {reason}"
    assert engines(load(models, backend="native")) == ["native"] * 2  # who names it has decided


def test_the_memory_of_the_system_or_of_a_container(monkeypatch, tmp_path):
    here = available_memory()
    if here is not None:
        assert 0 < here < 1 << 50
    monkeypatch.setattr(machine.cores, "CONTROL_GROUP", tmp_path)
    system = available_memory()
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 4\ninactive_file 50000\n")
    assert machine._room_of_group(*machine._LIMITS[0]) is None
    (tmp_path / "memory.max").write_text("1000000\n")
    assert machine._room_of_group(*machine._LIMITS[0]) == 750_000
    assert available_memory() == (None if system is None else 750_000)


# ---- what is shown ----


def test_generate_tells_what_runs_the_models_and_why(run, pair, prompts, tmp_path, monkeypatch):
    command = ["generate", *pair, "--max-new-tokens", 8, "--seed", 1]
    for name, options in (("torch", ["--backend", "torch"]), ("native", [])):
        found = json.loads(run(*command, *options, "--json", "the fox").stdout)
        assert (found["engine"].split()[0], found["fallback"]) == (name, None)
        engine = found["engine"]
        stderr = run(*command, *options, "the fox").stderr
        assert f" by {engine}, " in stderr
        assert "Note: " not in stderr
        out = tmp_path / f"{name}.jsonl"
        run(*command, *options, "--input", prompts, "--output", out)
        assert {json.loads(line)["engine"] for line in out.read_text().splitlines()} == {engine}
    broken(monkeypatch)
    found = json.loads(run(*command, "--json", "the fox").stdout)
    reason = "the native engine does not run the models (the draft: it is of an odd make)"
    assert (found["engine"], found["fallback"]) == ("torch", reason)
    stderr = run(*command, "the fox").stderr
    assert "Note: the native engine does not run the models: the draft: it is of an odd make.\n" in stderr
    assert " by torch, " in stderr


def test_check_tells_what_runs_the_models(run, pair, monkeypatch):
    pair = ["--target", pair[1], "--draft", pair[1]]  # a run without accepted drafts is no proof
    command = ["check", *pair, "--prompt", "the fox", "--method", "rsd-s", "--top-k", 3, "--enumerate", 2]
    begins = f"rsd-s + recursive by native {library.instruction_set()}: exact. The joint distribution of the first 2 tokens"
    assert run(*command).stdout.startswith(f"{begins} after a prompt, ")
    broken(monkeypatch)
    result = run(*command, "--json")
    found = json.loads(result.stdout)
    reason = "the native engine does not run the models (the draft: it is of an odd make)"
    assert (found["exact"], found["engine"], found["fallback"]) == (True, "torch", reason)
    assert "Note: the native engine does not run the models: the draft: it is of an odd make.\n" in result.stderr


def test_info_tells_what_auto_is(run, monkeypatch):
    from draftwood.cli import facts

    def set_native(missing):
        for module in (facts, backends):
            monkeypatch.setattr(module, "why_missing", lambda: missing)

    for module in (library, facts):
        monkeypatch.setattr(module, "instruction_sets", lambda: ["generic", "avx2"])
    set_native(None)
    found = json.loads(run("info", "--json").stdout)
    native = {"native": {"instruction_set": "avx2", "available": ["generic", "avx2"]}, "native_missing": None}
    assert found["backends"] == {"auto": ["native", "torch"], "reason": None, **native}
    assert "  auto: native, torch\n" in run("info").stdout
    assert "    available: generic, avx2\n" in run("info").stdout
    monkeypatch.setenv(library.ISA_VARIABLE, "sse9")
    result = run("info")
    assert (result.exit_code, "DRAFTWOOD_ISA is 'sse9': this processor has generic, avx2" in result.stderr) == (2, True)
    set_native("it was not compiled")
    found = json.loads(run("info", "--json").stdout)["backends"]
    assert (found["auto"], found["native"], found["native_missing"]) == (["torch"], None, "it was not compiled")
    reason = "the native engine is not tried, as it was not compiled"
    assert found["reason"] == reason
    assert f"  auto: torch\n  reason: {reason}\n" in run("info").stdout
    monkeypatch.setenv(VARIABLE, "torch")
    shown = run("info").stdout
    assert "reason: DRAFTWOOD_BACKEND is set\n" in shown
    assert "native_missing: it was not compiled\n" in shown


def test_a_profile_of_one_backend_is_not_used_by_the_other_and_that_is_told(run, models, pairs, monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    key = pairs["native"].known.profile_key
    assert key is not None
    path = default_path(key)
    save(path, key, choices={1.0: Method(method="chain", shape="3")})
    assert load(models).method().method == "chain"
    engine = key["engine"]
    said = f"({path}): there engine is '{engine}', here 'torch', so the default method is used"
    with pytest.warns(UserWarning, match=re.escape(said)):
        assert not load(models, backend="torch").known.choices
    assert not load(models, profile="none").known.choices
    with pytest.raises(ConfigError, match=f"there engine is '{engine}', here 'torch'"):
        load(models, backend="torch", profile=str(path))
    monkeypatch.setenv(VARIABLE, "torch")
    shown = run("info").stdout
    assert f"    engine: {engine}\n" in shown
    assert "    applies: True\n" in shown
    assert profile.why_not(read(path).profile_key) is None
    monkeypatch.setattr(profile, "why_missing", lambda: "it was not compiled")
    assert profile.why_not(read(path).profile_key) == f"there is no engine '{engine}' here"
    save(path, {**key, "engine": "openvino"})
    assert profile.why_not(read(path).profile_key) == "there is no engine 'openvino' here"
