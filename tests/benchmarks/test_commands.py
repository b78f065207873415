"""The command as a whole."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import run as bench_run
from benchmarks import settings
from benchmarks.__main__ import main
from benchmarks.config import BenchConfig
from benchmarks.generate import command
from draftwood.api import Pair

SMALL = ["--repeats", "2", "--prompts-per-source", "1", "--max-new-tokens", "4"]


@pytest.fixture
def loaded(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Arguments of a small run with the tiny pair, and prompts that fit it."""
    monkeypatch.setattr("draftwood.api.load", lambda target, draft, options: pair)
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "ab", "source": "x"}\n{"prompt": "cde", "source": "y"}\n')
    few = ("ar", None), ("chain", "3"), ("generate", None), ("assisted", "3")
    settings_of = [settings.Setting(method=m, shape=s, nodes=int(s or 0)) for m, s in few]
    monkeypatch.setitem(settings.PLANS, "peers", lambda: settings_of)
    return ["generate", "--preset", "peers", *SMALL, "--prompts", str(path), "--output", str(tmp_path / "out")]


def test_every_setting_is_an_option_with_its_default_and_help() -> None:
    options = {p.name: p for p in command.params}
    for f in dataclasses.fields(BenchConfig):
        option = options[f.name]
        assert isinstance(option, click.Option)
        assert option.help
        assert option.default == f.default


def test_a_run_writes_both_files(loaded: list[str], tmp_path: Path) -> None:
    run = CliRunner().invoke(main, loaded, catch_exceptions=False)
    assert run.exit_code == 0
    assert str(tmp_path / "out" / "bench.md") in run.stdout
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert document["partial"] is False
    assert {(r["setting"], r["temperature"]) for r in document["results"]} == {
        (s, t) for s in ("ar", "chain 3", "generate", "assisted 3") for t in (0.0, 1.0)
    }
    assert (tmp_path / "out" / "bench.md").read_text().startswith("# Draftwood benchmark\n")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["bench.json", "bench.md"]


def test_batches_of_several_texts_stand_in_the_report_beside_single_ones(loaded: list[str], tmp_path: Path) -> None:
    path = tmp_path / "four.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("ab", "cdefg", "h", "ij")))
    run = CliRunner().invoke(
        main, [*loaded, "--prompts", str(path), "--prompts-per-source", "4", "--batch", "4,1"], catch_exceptions=False
    )
    assert run.exit_code == 0
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    found = {(r["setting"], r["batch"], r["temperature"]): r for r in document["results"]}
    assert found.keys() == {(s, 1, t) for s in ("ar", "chain 3", "generate", "assisted 3") for t in (0.0, 1.0)} | {
        (s, 4, t) for s in ("ar", "chain 3", "generate") for t in (0.0, 1.0)
    }
    one, four = (found["generate", size, 0.0]["repeats"][0] for size in (1, 4))
    assert (one["new_tokens"], four["new_tokens"]) == ([4, 4, 4, 4], [16])
    assert found["generate", 4, 0.0]["block_efficiency"] == found["ar", 4, 1.0]["block_efficiency"] == 1
    assert found["chain 3", 4, 0.0]["block_efficiency"] == found["chain 3", 1, 0.0]["block_efficiency"] > 1
    assert all(set(r["speedup"]) == {"ar", "generate"} for r in found.values())
    checked = {(c["setting"], c["batch"]): c for c in document["greedy"]}
    assert len(checked) == 7
    assert all((c["compared"], c["differing"]) == (4, []) for c in checked.values())
    report = (tmp_path / "out" / "bench.md").read_text()
    assert "* **left out**: assisted at batch 4, transformers drafts for one text at a time" in report
    assert "Left out: assisted at batch 4" in run.stderr
    tables = report.split("## Temperature 0, batch 4\n")[1].split("\n## ")[0]
    assert "| generate |" in tables
    assert "assisted" not in tables
    assert "| chain 3, batch 4 | 4 | 0 |  |" in report


def test_batches_that_cannot_be_filled_are_refused(loaded: list[str]) -> None:
    for batch, message in (("3", "batches of 3"), ("0", "batch holds '0'"), ("x", "batch holds 'x'")):
        refused = CliRunner().invoke(main, [*loaded, "--batch", batch])
        assert refused.exit_code == 2
        assert message in refused.output


@pytest.mark.parametrize(("after", "kept"), [(8 + 8 + 3, [1]), (8 + 16 + 8 + 1, [2, 1])])
def test_an_interrupted_run_writes_what_it_has(
    loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, kept: list[int]
) -> None:
    real, calls = bench_run.measure, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) > after:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(bench_run, "measure", interrupted)
    run = CliRunner().invoke(main, loaded)
    assert run.exit_code == 130
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert document["partial"] is True
    assert all([len(r["seconds"]) for r in result["repeats"]] == kept for result in document["results"])
    assert "interrupted" in (tmp_path / "out" / "bench.md").read_text().splitlines()[0]


def test_a_run_that_fails_while_warming_up_leaves_an_older_result_alone(
    loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args):
        raise RuntimeError("no")

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bench.json").write_text("older")
    monkeypatch.setattr(bench_run, "measure", broken)
    assert CliRunner().invoke(main, loaded).exit_code == 1
    assert (tmp_path / "out" / "bench.json").read_text() == "older"


def test_the_command_does_not_import_torch() -> None:
    code = "import sys, benchmarks.generate; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=paths).returncode == 0
