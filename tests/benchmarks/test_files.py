"""Files that cost what larger ones cost, and what inputs of 8 bits cost and change in such a file."""

from __future__ import annotations

import json
import sys
from math import log
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import gguf
import pytest
import torch

import draftwood
from benchmarks import files, llama_wheel
from benchmarks.divergence import compared, log_scores
from benchmarks.settings import Setting
from draftwood.native.library import instruction_set
from tests.benchmarks.tiny import call
from tests.loading.gguf_files import source, write_gguf

ISA = instruction_set()
EIGHT, SIXTEEN = f"native 8-bit activations {ISA}", f"native {ISA}"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in the format that files are made from."""
    return write_gguf(tmp_path_factory.mktemp("small") / "small.gguf", *source())


@pytest.fixture
def random_file(small: Path, tmp_path: Path) -> Path:
    path = tmp_path / "random.gguf"
    files.write_random(small, path, width=256, layers=2, feed_forward=512, heads=4, shared=2)
    return path


def opened(path: Path) -> draftwood.Pair:
    return draftwood.load(path, options={"backend": "native", "profile": "none"})


def test_a_wider_file_is_the_same_model_to_the_bit(small: Path, tmp_path: Path) -> None:
    text, found = list(range(1, 30)), []
    for times in (1, 3):
        files.write_wide(small, path := tmp_path / f"{times}.gguf", times=times)
        pair = opened(path)
        assert pair.model.config.intermediate_size == 64 * times
        found.append(log_scores(pair.target, text))
    assert torch.equal(*found)


def test_random_codes_have_the_types_of_a_usual_file_and_finite_scores(random_file: Path) -> None:
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(random_file).tensors if len(t.shape) > 1}
    six = {"token_embd.weight", "blk.1.attn_v.weight", "blk.1.ffn_down.weight"}
    assert kinds == {name: "Q6_K" if name in six else "Q4_K" for name in kinds}
    scores = log_scores(opened(random_file).target, [1, 2, 3])
    assert scores.isfinite().all()
    assert scores.std() > 0.01


def test_a_named_file_is_made_once(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(files, "locate", lambda name: small)
    path = files.named_file(files.WIDE)
    monkeypatch.setattr(files, "write_wide", None)
    assert files.named_file(files.WIDE) == path
    assert (files.named_file("smollm2"), files.named_file(None)) == ("smollm2", None)


def test_cost_times_both_arithmetics_and_a_prompt(random_file: Path, tmp_path: Path) -> None:
    options = "--tokens", 1, "--context", 5, "--repeats", 1, "--prompt", 9, "--activations", 8, "--activations", 16
    report = call("cost", "--backend", "native", "--target", random_file, *options, "--output", tmp_path).output
    assert f"| {EIGHT} | " in report.partition("A prompt of 9 tokens")[2]
    document = json.loads((tmp_path / "cost.json").read_text())
    assert [r["backend"] for r in document["milliseconds"]] == [EIGHT, SIXTEEN]


def test_divergence_is_that_of_the_distributions() -> None:
    right, other = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log(), torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    found = compared(right, other, [0, 1])
    assert found["divergence"] == pytest.approx(0.5 * log(2) + 0.5 * log(2 / 3))
    assert found == {**found, "tokens": 2, "same_best": 1, "following": 1}
    assert (found["surprise_16"], found["surprise_8"]) == pytest.approx((log(2), -log(0.75)))


def test_divergence_compares_inputs_of_8_bits_with_those_of_16(random_file: Path, tmp_path: Path) -> None:
    (tmp_path / "a.val.txt").write_text("the fox and the dog " * 30)
    options = "--pieces", 2, "--tokens", 40, "--data", tmp_path, "--output", tmp_path
    assert "| all | 80 |" in call("divergence", "--target", random_file, *options).output
    document = json.loads((tmp_path / "divergence.json").read_text())
    assert (document["model"]["engine"], document["against"]) == (EIGHT, SIXTEEN)
    assert 0 < document["sources"][0]["divergence"] / 80 < 0.1


def test_the_wheel_of_llama_cpp_gets_token_ids_and_its_times_are_those_that_it_says(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, prompt, asked = opened(small), [1, 2, 3], []
    said = {"usage": {"completion_tokens": 3}, "choices": [{"text": "x"}]}
    said["timings"] = {"prompt_ms": 500.0, "predicted_per_token_ms": 20.0}
    server = SimpleNamespace(handle_completions=lambda wanted: asked.append(wanted) or said)
    fake = MagicMock(Server=lambda _: server, get_system_info=lambda: "CPU : AVX2 = 1 | AVX512 = 0 | FMA = 1 | ")
    monkeypatch.setitem(sys.modules, "xllamacpp", fake)
    program = llama_wheel.LlamaWheel(pair)
    found = program.maker(Setting(method="llama.cpp-wheel"), 0.5, 9)([prompt], [7])
    assert (len(found.tokens[0]), found.forwards, llama_wheel.uses()) == (3, 3, "AVX2 FMA")
    assert (
        asked[0].items() >= {"prompt": prompt, "n_predict": 9, "temperature": 0.5, "seed": 7, "cache_prompt": False}.items()
    )
    assert program.seconds(5, 2) == (0.5, 0.02)
    assert len(asked[1]["prompt"]) == 5
