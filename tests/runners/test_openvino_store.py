"""Converted models are kept, found again, and made anew where what was kept is damaged or of another model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.runners.pairing import digest_of
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from tests.helpers import begin, interrupted
from tests.runners.seq2seq_zoo import tiny
from tests.runners.test_seq2seq import SourceWalk

pytest.importorskip("openvino")
from draftwood.runners.openvino import graph, store
from draftwood.runners.seq2seq import openvino_decoder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def made(monkeypatch, tmp_path) -> list[str]:
    """The types of the models of which a graph was made, twice for each conversion; the cache is empty at first."""
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    found: list[str] = []
    for name in ("encoder_graph", "decoder_graph"):
        inner = getattr(openvino_decoder, name)
        monkeypatch.setattr(
            openvino_decoder, name, lambda model, make=inner: (found.append(model.config.model_type), make(model))[1]
        )
    return found


def small(kind: str = "marian", **settings):
    return tiny(kind, dtype=torch.float32, spread=1.0, **settings)


def runner_of(model) -> Seq2SeqRunner:
    return Seq2SeqRunner(model, engine="openvino", check=False)


def decoder_folder() -> Path:
    [folder] = store.store_folder().glob("*-decoder")
    return folder


def scores(runner) -> torch.Tensor:
    begin(runner, [[1, 2, 3]], [[5, 4, 6]])
    return runner.extend(torch.tensor([[4]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)).logits


def test_a_model_is_converted_once(made, tmp_path):
    from transformers import AutoModelForSeq2SeqLM

    first = scores(runner_of(small("bart")))
    files = [path for path in store.store_folder().rglob("*") if path.is_file()]
    assert store.store_size() == sum(path.stat().st_size for path in files)
    small("bart").save_pretrained(tmp_path / "copy")
    for model in (small("bart"), AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "copy").eval()):
        again = runner_of(model)
        assert made == ["bart"] * 2
        assert torch.equal(scores(again), first)
    assert SourceWalk(again, [3, 0]).round() < 1e-4
    runner_of(small())
    assert made == ["bart"] * 2 + ["marian"] * 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


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


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_damaged_is_made_anew(made, damage):
    before = scores(runner_of(small()))
    damage(decoder_folder())
    for _ in range(2):
        assert torch.equal(scores(runner_of(small())), before)
        assert made == ["marian"] * 3


def test_an_interrupted_conversion_leaves_nothing(made, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "_checksum", interrupted(store._checksum, 0))
        with pytest.raises(KeyboardInterrupt):
            runner_of(small())
    assert list(store.store_folder().iterdir()) == []
    runner_of(small())
    assert made == ["marian"] * 3


def nudge(model):
    """By less than bfloat16 could tell."""
    weight = model.get_decoder().layers[0].fc1.weight.data
    more = weight.nextafter(torch.tensor(torch.inf))
    weight.copy_(more.where(more.bfloat16() == weight.bfloat16(), weight))
    before = small()
    assert not torch.equal(weight, before.get_decoder().layers[0].fc1.weight)
    assert digest_of(model) == digest_of(before)
    return model


@pytest.mark.parametrize("other", [
    lambda: small(seed=1), lambda: small(activation_function="relu"), lambda: nudge(small()),
], ids=["seed", "activation", "nudge"])  # fmt: skip
def test_another_model_or_version_is_another_entry(made, other, monkeypatch):
    runner_of(small())
    runner_of(other())
    assert made == ["marian"] * 4
    monkeypatch.setattr(store, "version_of", lambda package: f"new {package}")
    runner_of(small())
    assert made == ["marian"] * 6


def test_a_folder_that_cannot_be_written_is_a_warning(made, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be kept in .*file"):
        runner = runner_of(small())
    assert SourceWalk(runner, [3, 0]).round() < 1e-4


# ---- the package ----


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    for name in ("openvino", "core"):
        getattr(graph, name).cache_clear()
    try:
        with pytest.raises(ConfigError, match=r'pip install "draftwood\[openvino\]"'):
            runner_of(small().bfloat16())
    finally:
        graph.openvino.cache_clear()


def test_nothing_is_reported_to_anybody():
    code = (
        "import sys, torch; from tests.runners.seq2seq_zoo import tiny\n"
        "from draftwood.runners.seq2seq.openvino_decoder import encoder_graph\n"
        "assert 'openvino' not in sys.modules\n"
        "encoder_graph(tiny('marian', dtype=torch.float32))\n"
        "sys.exit('openvino_telemetry' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_an_interrupt_after_models_are_gone():
    """OpenVINO changes the stack that signal handlers run on."""
    code = (
        "import gc, os, signal, time, torch\n"
        "from tests.runners.seq2seq_zoo import tiny\n"
        "from draftwood.runners.seq2seq.runner import Seq2SeqRunner\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "models = [tiny('marian', seed=seed, dtype=torch.float32) for seed in (0, 1)]\n"
        "runners = [Seq2SeqRunner(model, engine='openvino') for model in models]\n"
        "while runners:\n"
        "    del runners[0]\n"
        "    gc.collect()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    raise SystemExit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 7
