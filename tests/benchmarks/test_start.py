"""Starting: what is measured in a fresh process, and what is reported of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from benchmarks.start import run
from benchmarks.start.config import StartConfig
from benchmarks.start.peers import files
from benchmarks.start.process import STATUS, memory, started
from draftwood.core.errors import ConfigError
from draftwood.loading.names import bundled_pairs
from tests.benchmarks.tiny import call

SMALL = str(bundled_pairs()["language"]["draft"])  # as target and draft: a million parameters
JOB = {"target": SMALL, "draft": SMALL, "dtype": "float32", "prompt": "Once upon a time", "max_new_tokens": 6}


@pytest.mark.parametrize("system", ["transformers", "torch"])
def test_a_start_passes_its_points_in_order_and_writes_the_tokens(system: str) -> None:
    begun = perf_counter()
    found = started(JOB | {"system": system, "begun": begun})
    taken = perf_counter() - begun
    assert 0 < found["imported"] < found["loaded"] < found["first_token"] < found["done"] < taken
    assert found["tokens"] == 6
    assert 0 < found["peak_loaded"] <= found["peak"]
    assert 0 < found["held"] <= found["peak"]


def test_a_process_of_its_own_tells_the_same_and_says_why_it_failed(tmp_path: Path) -> None:
    found = run.start(JOB | {"system": "torch"}, tmp_path)
    assert found["tokens"] == 6
    assert 0 < found["imported"] < found["loaded"] < found["first_token"] < found["done"]
    with pytest.raises(ConfigError, match=r"its process failed \(.*there is no folder"):
        run.start(JOB | {"system": "torch", "target": str(tmp_path / "none")}, tmp_path)


@pytest.mark.parametrize(("system", "package"), [("genai", "openvino_genai"), ("llama.cpp", "llama_cpp")])
def test_other_programs_write_as_many_tokens(system: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    job = JOB | {"system": system}
    found = run.start(job | files(system, job, tmp_path), tmp_path)
    assert 0 < found["imported"] < found["loaded"] < found["first_token"] < found["done"]
    assert found["tokens"] == 6


@pytest.mark.skipif(not STATUS.is_file(), reason="the kernel does not tell")
def test_the_peak_is_the_processs_own_and_not_its_parents() -> None:
    large = bytearray(400 << 20)
    code = "from benchmarks.start.process import memory; print(memory()['peak'])"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 5e6 < int(child.stdout) < len(large)
    assert memory()["peak"] >= len(large)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
    """Every start: its system, its cache, and whether something lay there."""
    calls: list[tuple[str, str, bool]] = []

    def start(job: dict, cache: Path) -> dict:
        if job["system"] == "torch":
            raise ConfigError("its process failed (no)")
        calls.append((job["system"], str(cache), any(cache.iterdir())))
        (cache / "file").write_text("")
        n = len(calls)
        return {
            "imported": 1.0, "loaded": 2.0, "first_token": float(2 + n), "done": 9.0,
            "peak_loaded": 10**8, "peak": 2 * 10**8, "held": None, "tokens": 4,
        }  # fmt: skip

    monkeypatch.setattr(run, "start", start)
    return calls


def test_every_start_has_a_cache_of_its_own(made_up: list) -> None:
    systems = "transformers,torch,native,llama.cpp"
    document = run.measure(StartConfig(repeats=2, dtype="float64", systems=systems), lambda: None)
    assert [filled for _, _, filled in made_up] == [False] * 4
    assert len({cache for _, cache, _ in made_up}) == 4
    assert not any(Path(cache).exists() for _, cache, _ in made_up)
    assert [r["start"] for r in document["results"]] == ["transformers", "native"]
    assert {s["system"] for s in document["skipped"]} == {"torch", "llama.cpp"}
    assert {"system": "torch", "why": "its process failed (no)"} in document["skipped"]
    assert 1.1e7 < document["model"]["parameters"] < 1.2e7


def test_the_report_says_what_the_raw_starts_say(made_up: list) -> None:
    document = json.loads(json.dumps(run.measure(StartConfig(repeats=3), lambda: None)))
    base, first = (result["repeats"] for result in document["results"])
    over = sorted(a["first_token"] / b["first_token"] for a, b in zip(first, base, strict=True))
    seconds = sorted(one["first_token"] for one in first)
    text = run.markdown(document)
    [line] = [line for line in text.splitlines() if line.startswith("| native | 1.00")]
    assert f"| {seconds[1]:.2f} ({seconds[0]:.2f} to {seconds[2]:.2f}) |" in line
    assert line.endswith(f"| {over[1]:.2f} ({over[0]:.2f} to {over[2]:.2f}) |")


def test_the_command_writes_both_files_and_refuses_what_it_cannot_do(made_up: list, tmp_path: Path) -> None:
    chosen = ["start", "--repeats", "1", "--prompt-words", "500", "--output", tmp_path]
    call(*chosen, "--systems", "transformers")
    document = json.loads((tmp_path / "start.json").read_text())
    assert [r["start"] for r in document["results"]] == ["transformers"]
    assert (tmp_path / "start.md").read_text() == run.markdown(document)
    assert [len(run.prompt(words).split()) for words in (1, 30, 500)] == [1, 30, 500]
    assert "nothing could be started" in call(*chosen, "--systems", "torch", code=2).output
