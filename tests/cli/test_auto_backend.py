"""What ``--backend auto`` is: OpenVINO where it can, PyTorch where it cannot, and the reason is shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import draftwood
from draftwood import Limits, LoadOptions, Method, Pair, Sampling
from draftwood.core.errors import ConfigError, ModelError
from draftwood.hardware.machine import available_memory
from draftwood.loading import profile
from draftwood.loading.models import choose_dtype
from draftwood.runners import auto, backends
from draftwood.runners.auto import VARIABLE, why_no_room, why_not_openvino
from draftwood.runners.openvino import store
from tests.cli.conftest import Run

pytest.importorskip("openvino")
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(autouse=True)
def _auto(monkeypatch):
    monkeypatch.setenv(VARIABLE, "auto")


def load(models: Path, **options) -> Pair:
    return draftwood.load(models / "target", models / "draft", options=LoadOptions(**options))


def engines(pair: Pair) -> list[str]:
    return [pair.target.engine, pair.draft.engine]


def broken(monkeypatch, who: str = "draft") -> None:
    """OpenVINO runs everything except this model."""
    inner = backends.OpenVinoRunner

    def runner(model, *, drafts: bool = False, **options):
        if drafts == (who == "draft"):
            raise ModelError("it is of an odd make")
        return inner(model, drafts=drafts, **options)

    monkeypatch.setattr(backends, "OpenVinoRunner", runner)


@pytest.fixture(scope="module")
def both(models) -> dict[str, Pair]:
    """The pair as it is loaded with two backends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "auto")
        return {name: load(models, backend=name) for name in ("torch", "auto")}


def test_auto_is_openvino_on_a_cpu(both):
    assert {name: (engines(pair), pair.fallback) for name, pair in both.items()} == {
        "torch": (["torch"] * 2, None), "auto": (["openvino"] * 2, None),
    }  # fmt: skip


def test_the_number_format_is_the_same_whatever_runs_it(both):
    formats = {pair.target.model.dtype for pair in both.values()}
    assert formats == {choose_dtype("auto", torch.device("cpu"))} == {torch.float32}


@pytest.mark.parametrize("method", [Method(method="ar"), Method(method="shared-noise", nodes=6), Method(method="rsd-s")])
def test_greedy_texts_are_those_of_pytorch(both, method):
    prompts, limits = ["the fox", "a dog and", "once"], Limits(max_new_tokens=24)
    texts = {
        name: [r.token_ids for r in pair.generate(prompts, method=method, sampling=GREEDY, limits=limits)]
        for name, pair in both.items()
    }
    assert texts["torch"] == texts["auto"]


def test_a_backend_that_is_named_is_taken(models, monkeypatch):
    monkeypatch.setenv(VARIABLE, "torch")
    pair = load(models)
    assert (engines(pair), pair.fallback) == (["torch"] * 2, None)
    assert engines(load(models, backend="openvino")) == ["openvino"] * 2
    monkeypatch.setenv(VARIABLE, "openvino")
    with pytest.raises(ConfigError, match="dtype float64 is impossible with OpenVINO"):
        load(models, dtype="float64")
    monkeypatch.setenv(VARIABLE, "jax")
    with pytest.raises(ConfigError, match="DRAFTWOOD_BACKEND is 'jax': set it to auto, torch or openvino, or unset it"):
        load(models)
    assert engines(load(models, backend="torch")) == ["torch"] * 2


def test_what_only_openvino_does_means_openvino(models):
    assert engines(load(models, device="openvino:CPU")) == ["openvino"] * 2
    with pytest.raises(ConfigError, match="OpenVINO has no device 'FPGA' here"):
        load(models, device="openvino:FPGA")


def test_the_second_start_takes_what_is_kept(models, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="draftwood"):
        load(models)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2  # target and draft
    assert all(text.endswith(f"is converted for OpenVINO once and stored in {tmp_path / 'openvino'}") for text in messages)
    monkeypatch.setattr(store, "graph_of", pytest.fail)  # nothing is converted from here on
    caplog.clear()
    assert engines(load(models)) == ["openvino"] * 2
    assert not caplog.records


@pytest.mark.parametrize("who", ["target", "draft"])
def test_where_one_of_them_cannot_be_converted_pytorch_runs_both(models, monkeypatch, caplog, who):
    broken(monkeypatch, who)
    with caplog.at_level(logging.INFO, logger="draftwood"):
        pair = load(models)
    reason = {"target": "it is of an odd make", "draft": "the draft: it is of an odd make"}[who]
    assert (engines(pair), pair.fallback) == (["torch"] * 2, reason)
    assert caplog.records[-1].getMessage() == f"PyTorch runs the models, as OpenVINO does not: {reason}"
    with pytest.raises(ModelError, match=f"^{reason}$"):
        load(models, backend="openvino")


def test_other_reasons_for_pytorch(models, monkeypatch):
    pair = load(models, dtype="float64")
    assert engines(pair) == ["torch"] * 2
    assert pair.fallback is not None
    assert "dtype float64 is impossible with OpenVINO" in pair.fallback
    assert why_not_openvino(torch.device("cpu")) is None
    assert why_not_openvino(torch.device("cuda:1")) == "the models are on cuda:1"
    monkeypatch.setattr(auto, "version_of", lambda package: None)
    pair = load(models)
    assert (engines(pair), pair.fallback) == (
        ["torch"] * 2, 'OpenVINO is not installed (pip install "draftwood[openvino]")'
    )  # fmt: skip


def test_an_error_of_the_models_themselves_is_raised(models, monkeypatch):
    def refuse(model, **options):
        raise ModelError("nobody can run it")

    monkeypatch.setattr(backends, "OpenVinoRunner", refuse)
    monkeypatch.setattr(backends, "TorchRunner", refuse)
    with pytest.raises(ModelError, match="nobody can run it"):
        load(models)


def test_live_models_stay_with_pytorch(models):
    loaded = draftwood.load(models / "target", models / "draft")
    pair = Pair(loaded.target.model, loaded.draft.model, loaded.tokenizer)
    assert (engines(pair), pair.fallback) == (["torch"] * 2, None)
    before = pair.generate("the fox", sampling=GREEDY, limits=Limits(max_new_tokens=8)).token_ids
    with torch.no_grad():
        pair.target.model.get_output_embeddings().weight.neg_()
    assert pair.generate("the fox", sampling=GREEDY, limits=Limits(max_new_tokens=8)).token_ids != before
    assert loaded.generate("the fox", sampling=GREEDY, limits=Limits(max_new_tokens=8)).token_ids == before  # a copy


# ---- memory ----


def model_of(dtype: torch.dtype, device: str = "cpu"):
    weights = [torch.zeros(1000, dtype=dtype, device=device)]
    return SimpleNamespace(parameters=lambda: weights, dtype=dtype)


@pytest.mark.parametrize(("dtype", "needed"), [(torch.float32, 4800), (torch.bfloat16, 2400)])
def test_a_copy_in_memory_is_made_where_there_is_room(monkeypatch, dtype, needed):
    for room, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(auto, "available_memory", lambda room=room: room)
        assert (why_no_room([model_of(dtype)]) is None) == fits
    assert (why_no_room([model_of(dtype)] * 2) is None) is False


def test_where_nobody_says_how_much_memory_there_is_a_small_model_is_converted(monkeypatch):
    monkeypatch.setattr(auto, "available_memory", lambda: None)
    assert why_no_room([model_of(torch.float32)]) is None
    monkeypatch.setattr(auto, "_UNKNOWN", 100)
    assert "the available memory is unknown" in str(why_no_room([model_of(torch.float32)]))


def test_without_memory_for_a_copy_pytorch_runs_the_models(models, both, monkeypatch):
    monkeypatch.setattr(auto, "available_memory", lambda: 100_000)
    pair = load(models)
    assert engines(pair) == ["torch"] * 2
    assert pair.fallback == "its copy of the models would take about 0.0 GB of memory, and 0.0 GB are available"
    assert engines(load(models, backend="openvino")) == ["openvino"] * 2  # who names it has decided


def test_the_memory_of_the_system_or_of_a_container(monkeypatch, tmp_path):
    from draftwood.hardware import machine

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


def test_generate_tells_what_runs_the_models_and_why(run: Run, pair, monkeypatch):
    command = ["generate", *pair, "--max-new-tokens", 8, "--seed", 1]
    found = json.loads(run(*command, "--json", "the fox").stdout)
    assert (found["engine"], found["fallback"]) == ("openvino", None)
    stderr = run(*command, "the fox").stderr
    assert " by openvino, " in stderr
    assert "Note: " not in stderr
    broken(monkeypatch)
    result = run(*command, "--json", "the fox")
    found = json.loads(result.stdout)
    assert (found["engine"], found["fallback"]) == ("torch", "the draft: it is of an odd make")
    stderr = run(*command, "the fox").stderr
    assert stderr.startswith("Note: PyTorch runs the models, as OpenVINO does not: the draft: it is of an odd make.\n")
    assert stderr.count("Note: ") == 1
    assert " by torch, " in stderr


def test_check_tells_what_runs_the_models(run: Run, pair, monkeypatch):
    command = ["check", *pair, "--prompt", "the fox", "--method", "rsd-s", "--top-k", 3, "--enumerate", 2]
    assert run(*command).stdout.startswith(
        "rsd-s + recursive by openvino: exact. The joint distribution of the first 2 tokens"
    )
    broken(monkeypatch)
    result = run(*command, "--json")
    found = json.loads(result.stdout)
    assert (found["exact"], found["engine"], found["fallback"]) == (True, "torch", "the draft: it is of an odd make")
    assert result.stderr == "Note: PyTorch runs the models, as OpenVINO does not: the draft: it is of an odd make.\n"


def test_info_tells_what_auto_is(run: Run, monkeypatch):
    from draftwood.cli import facts

    found = json.loads(run("info", "--json").stdout)
    version = found["backends"].pop("openvino")
    assert found["backends"] == {"auto": ["openvino", "torch"], "reason": None}
    assert Path(found["converted"]["folder"]).name == "openvino"
    assert f"auto is openvino, else torch; OpenVINO {version}, converted models: " in run("info").stdout
    monkeypatch.setenv(VARIABLE, "torch")
    assert "auto is torch: DRAFTWOOD_BACKEND is set; OpenVINO " in run("info").stdout
    monkeypatch.delenv(VARIABLE)
    for module in (facts, auto):
        monkeypatch.setattr(module, "version_of", lambda package: None)
    assert 'auto is torch: OpenVINO is not installed (pip install "draftwood[openvino]")\n' in run("info").stdout


def test_a_profile_of_pytorch_is_not_used_by_auto_and_that_is_told(run: Run, models, both, monkeypatch, tmp_path):
    from draftwood.cli import facts

    for module in (profile, facts):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    subject = both["torch"].profile_key
    assert subject is not None
    path = profile.default_path(subject)
    path.parent.mkdir()
    path.write_text(json.dumps(profile.document(subject, {1.0: Method(method="chain", shape="3")}, {})))
    with pytest.warns(UserWarning, match=rf"{path}, was measured with engine 'torch', but here it is 'openvino'"):
        assert load(models).profile is None
    assert load(models, backend="torch").method().method == "chain"
    assert "    applies with --backend torch: chain 3 at 1\n" in run("info").stdout
    monkeypatch.setenv(VARIABLE, "torch")
    assert "    applies: chain 3 at 1\n" in run("info").stdout
