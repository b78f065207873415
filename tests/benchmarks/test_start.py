"""Starting: what is measured in a fresh process, and what is reported of it."""

import json
import subprocess
import sys
from time import perf_counter

import pytest

from benchmarks.start import run
from benchmarks.start.process import STATUS, memory
from draftwood.core.errors import ConfigError
from draftwood.loading.names import bundled_pairs
from tests.benchmarks.tiny import call

SMALL = str(bundled_pairs()["language"]["draft"])  # as target and draft: a million parameters
JOB = {"target": SMALL, "draft": SMALL, "dtype": "float32", "prompt": "Once upon a time", "max_new_tokens": 6}


def test_a_start_passes_its_points_in_order_in_a_process_of_its_own(tmp_path):
    begun = perf_counter()
    found = run.start(JOB | {"system": "torch"}, tmp_path)
    taken = perf_counter() - begun
    assert 0 < found["imported"] < found["loaded"] < found["first_token"] < found["done"] < taken
    assert found["tokens"] == 6
    assert 0 < found["peak_loaded"] <= found["peak"]
    assert 0 < found["held"] <= found["peak"]


def test_a_process_that_fails_says_why(tmp_path):
    with pytest.raises(ConfigError, match=r"its process failed \(.*there is no folder"):
        run.start(JOB | {"system": "torch", "target": str(tmp_path / "none")}, tmp_path)


@pytest.mark.skipif(not STATUS.is_file(), reason="the kernel does not tell")
def test_the_peak_is_the_processs_own_and_not_its_parents():
    large = bytearray(400 << 20)
    code = "from benchmarks.start.process import memory; print(memory()['peak'])"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 5e6 < int(child.stdout) < len(large)
    assert memory()["peak"] >= len(large)


def test_figures_are_medians_and_ratios_inside_each_repeat():
    ours, base = ([{"first_token": t, "held": None} for t in times] for times in ((3.0, 4.0, 8.0), (1.0, 2.0, 2.0)))
    found = run.figures(ours, base)
    assert found["first_token"] == {"median": 4.0, "min": 3.0, "max": 8.0}
    assert found["over_transformers"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert found["held"] is None


def test_what_cannot_be_started_is_left_out_with_the_reason(monkeypatch, tmp_path):
    def start(job, cache):
        assert not list(cache.iterdir())  # every start has a cache of its own
        (cache / "file").write_text("")
        if job["system"] == "torch":
            raise ConfigError("its process failed (no)")
        return dict.fromkeys(run.SECONDS, 2.0) | dict.fromkeys(run.MEMORY, 10**8)

    monkeypatch.setattr(run, "start", start)
    options = "start", "--repeats", 2, "--dtype", "float64", "--prompt-words", 500, "--output", tmp_path
    call(*options, "--systems", "transformers,torch,native,llama.cpp")
    document, text = json.loads((tmp_path / "start.json").read_text()), (tmp_path / "start.md").read_text()
    assert [result["start"] for result in document["results"]] == ["transformers", "native"]
    assert {skipped["system"] for skipped in document["skipped"]} == {"torch", "llama.cpp"}
    assert {"system": "torch", "why": "its process failed (no)"} in document["skipped"]
    assert "M parameters, float64; a prompt of 500 words" in text
    assert "**left out**: torch, its process failed (no)" in text
    assert "nothing could be started" in call(*options, "--systems", "torch", code=2).output
