"""Converted models are kept, found again, and made anew where what was kept is damaged or of another model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from draftwood.core.errors import ConfigError, ModelError
from draftwood.runners import support
from draftwood.runners.pairing import digest_of
from tests.helpers import begin, interrupted
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import plain_scores, tiny

pytest.importorskip("openvino")
from draftwood.runners.openvino import graph, store
from draftwood.runners.openvino import runner as openvino_runner
from draftwood.runners.openvino.runner import OpenVinoRunner


@pytest.fixture
def made(monkeypatch, tmp_path) -> list[str]:
    """The types of the models that were converted; the cache is empty at first."""
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    found: list[str] = []
    inner = store.paged_graph

    def paged_graph(model, hidden_layers=()):
        found.append(model.config.model_type)
        return inner(model, hidden_layers)

    monkeypatch.setattr(store, "paged_graph", paged_graph)
    return found


def small(kind: str = "gpt2", **settings):
    return tiny(kind, dtype=torch.float32, **settings)


def entry() -> Path:
    [folder] = store.store_folder().iterdir()
    return folder


def scores(runner) -> torch.Tensor:
    begin(runner, [[1, 2, 3]])
    return runner.extend(torch.tensor([[4]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)).logits


@pytest.fixture
def compared(monkeypatch) -> list[str]:
    """The types of the models that a graph was compared with."""
    found: list[str] = []
    inner = openvino_runner.check_scores
    monkeypatch.setattr(
        openvino_runner, "check_scores", lambda runner: (found.append(runner.model.config.model_type), inner(runner))
    )
    return found


def test_a_model_is_converted_and_compared_once(made, compared, tmp_path):
    from transformers import AutoModelForCausalLM

    first = scores(OpenVinoRunner(small()))
    assert store.store_size() == sum(path.stat().st_size for path in entry().iterdir())
    small().save_pretrained(tmp_path / "copy")
    for model in (small(), AutoModelForCausalLM.from_pretrained(tmp_path / "copy")):
        again = OpenVinoRunner(model)
        assert made == compared == ["gpt2"]
        assert torch.equal(scores(again), first)
    assert Walk(again, lambda text: plain_scores(small(), text), [3, 0]).round() < 1e-4
    OpenVinoRunner(small("llama"))
    assert made == compared == ["gpt2", "llama"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


NEW_COMPARISONS = {
    "another processor": lambda patch, folder: patch.setattr(store, "cpu_name", lambda: "another"),
    "a damaged record": lambda patch, folder: (folder / "compared.json").write_text("{"),
    "a record of another kind": lambda patch, folder: (folder / "compared.json").write_text('{"CPU": 1}'),
}
DAMAGE = {
    "a flipped bit of the weights": lambda f: flip(f / "model.bin"),
    "half the weights": lambda f: (f / "model.bin").write_bytes((f / "model.bin").read_bytes()[:2000]),
    "no weights": lambda f: (f / "model.bin").unlink(),
    "another graph": lambda f: (f / "model.xml").write_text("<net/>"),
    "no graph": lambda f: (f / "model.xml").unlink(),
    "no checksums": lambda f: (f / "checksums.json").unlink(),
    "broken checksums": lambda f: (f / "checksums.json").write_text("{"),
    "checksums of nonsense": lambda f: (
        (f / "model.xml").write_text("no graph"),
        (f / "checksums.json").write_text(json.dumps({n: store._checksum(f / n) for n in store._FILES})),
    ),
}


@pytest.mark.parametrize("change", NEW_COMPARISONS.values(), ids=NEW_COMPARISONS.keys())
def test_a_graph_is_compared_again_after(change, made, compared, monkeypatch):
    OpenVinoRunner(small())
    change(monkeypatch, entry())
    for _ in range(2):
        OpenVinoRunner(small())
    assert (made, compared) == (["gpt2"], ["gpt2"] * 2)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_damaged_is_made_and_compared_anew(made, compared, damage):
    before = scores(OpenVinoRunner(small()))
    damage(entry())
    for _ in range(2):
        assert torch.equal(scores(OpenVinoRunner(small())), before)
        assert made == compared == ["gpt2"] * 2


def test_a_graph_that_scores_differently_is_never_recorded(made, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(support, "TOLERANCE", {torch.float32: -1.0})
        for _ in range(2):
            with pytest.raises(ModelError, match="scores a text differently"):
                OpenVinoRunner(small())
    OpenVinoRunner(small())


def test_an_interrupted_conversion_leaves_nothing(made, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "_checksum", interrupted(store._checksum, 0))
        with pytest.raises(KeyboardInterrupt):
            OpenVinoRunner(small())
    assert list(store.store_folder().iterdir()) == []
    OpenVinoRunner(small())
    assert made == ["gpt2"] * 2


def nudge(model):
    """By less than bfloat16 could tell."""
    weight = model.transformer.h[0].mlp.c_fc.weight.data
    more = weight.nextafter(torch.tensor(torch.inf))
    weight.copy_(more.where(more.bfloat16() == weight.bfloat16(), weight))
    before = small()
    assert not torch.equal(weight, before.transformer.h[0].mlp.c_fc.weight)
    assert digest_of(model) == digest_of(before)
    return model


@pytest.mark.parametrize("other", [
    lambda: small(seed=1), lambda: small(num_attention_heads=2), lambda: small(layer_norm_epsilon=1e-3),
    lambda: nudge(small()),
], ids=["seed", "heads", "epsilon", "nudge"])  # fmt: skip
def test_another_model_or_version_is_another_entry(made, other, monkeypatch):
    OpenVinoRunner(small())
    OpenVinoRunner(other())
    assert made == ["gpt2"] * 2
    monkeypatch.setattr(store, "version_of", lambda package: f"new {package}")
    OpenVinoRunner(small())
    assert made == ["gpt2"] * 3


def test_a_folder_that_cannot_be_written_is_a_warning(made, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be kept in .*file"):
        runner = OpenVinoRunner(small())
    assert Walk(runner, lambda text: plain_scores(small(), text), [3, 0]).round() < 1e-4


# ---- the package ----


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    graph.openvino.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r'pip install "draftwood\[openvino\]"'):
            OpenVinoRunner(small())
    finally:
        graph.openvino.cache_clear()


def test_nothing_is_reported_to_anybody():
    code = (
        "import sys, torch; from tests.runners.zoo import tiny\n"
        "from draftwood.runners.openvino.graph import graph_of\n"
        "assert 'openvino' not in sys.modules\n"
        "graph_of(tiny('gpt2', dtype=torch.float32))\n"
        "sys.exit('openvino_telemetry' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0
