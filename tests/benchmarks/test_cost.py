"""What forwards cost: by tokens, context and engine, and what the memory allows."""

import json

import pytest
import torch

from benchmarks import cost
from benchmarks.config import CostConfig
from draftwood.core.errors import ConfigError
from draftwood.native.library import instruction_set
from tests.benchmarks.tiny import call


def test_the_forwards_are_those_that_were_asked_for(pair):
    sizes = []
    hook = pair.target.model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        cost.measure(CostConfig(tokens=(2, 4), context=(10,), repeats=3), {"torch": pair}, lambda: None)
    finally:
        hook.remove()
    assert sizes == [11, 2, 4, *[2, 2, 4, 4] * 3]  # each that is timed is behind one of its own size
    with pytest.raises(ConfigError, match="but the target has 160: give less"):
        cost.measure(CostConfig(context=(150,)), {"torch": pair}, lambda: None)


def test_the_table_says_how_many_times_one_token_it_takes():
    times = [
        {"backend": "torch", "context": 64, "tokens": n, "median": 9.0 + 3 * n, "least": 8.0 + 3 * n, "most": 11.0 + 3 * n}
        for n in (1, 3)
    ]
    document = {
        "config": {"tokens": [1, 3], "context": [64], "repeats": 5, "prompt": 60}, "versions": {"torch": "x"},
        "machine": {"cpu": "c", "accelerator": None, "cores": 2, "torch_threads": 2},
        "model": {"parameters": 25_000_000, "bytes": 100_000_000, "dtype": "float32", "label": "x.gguf"},
        "bytes_per_second": 1e10, "milliseconds": times, "prompts": {"torch": [20.0, 30.0, 40.0]}, "llama.cpp": None,
    }  # fmt: skip
    assert cost.limit(document) == pytest.approx(10.0)
    assert "| 64 | 12.00 (11.00 to 14.00); 1.00; 1.20 | 18.00 (17.00 to 20.00); 1.50; 1.80 |" in cost.markdown(document)
    assert "| torch | 30.0 (20.0 to 40.0) | 2000 |" in cost.markdown(document)


def test_reading_memory_takes_as_long_as_it_takes(monkeypatch):
    monkeypatch.setattr(cost, "_BYTES", 1 << 20)
    clock = iter([0.0, 2.0, 2.0, 3.0, *[float(i) * 5 for i in range(1, 11)]])
    monkeypatch.setattr(cost, "perf_counter", lambda: next(clock))
    assert cost.bandwidth(torch.device("cpu")) == 1 << 20  # the best: a second


def test_the_command_measures_every_size_behind_every_context_on_both_backends(tmp_path):
    sizes = "--tokens", 1, "--tokens", 3, "--context", 5, "--context", 20, "--dtype", "float32"
    report = call("cost", *sizes, "--repeats", 2, "--output", tmp_path, "--backend", "both").output
    document = json.loads((tmp_path / "cost.json").read_text())
    found = {(r["backend"], r["context"], r["tokens"]): r for r in document["milliseconds"]}
    engines = ("torch", f"native {instruction_set()}")
    assert found.keys() == {(backend, c, n) for backend in engines for c in (5, 20) for n in (1, 3)}
    assert all(0 < r["least"] <= r["median"] <= r["most"] for r in found.values())
    assert document["model"]["bytes"] == 4 * document["model"]["parameters"]
    assert (tmp_path / "cost.md").read_text().strip() in report
