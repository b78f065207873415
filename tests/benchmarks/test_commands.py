"""``generate`` as a whole: what it writes, in batches too, and what an interrupt leaves."""

import inspect
import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import run as bench_run
from benchmarks import settings
from benchmarks.__main__ import main
from benchmarks.settings import Setting
from tests.benchmarks.tiny import call
from tests.helpers import interrupted

ROOT = Path(__file__).parents[2]
NAMES = ("ar", "chain 3", "generate", "assisted 3")


@pytest.fixture
def loaded(prompt_file, monkeypatch, tmp_path):
    """Arguments of a small run with the tiny pair."""
    few = ("ar", None), ("chain", "3"), ("generate", None), ("assisted", "3")
    settings_of = [Setting(method=m, shape=s, nodes=int(s or 0)) for m, s in few]
    monkeypatch.setattr(settings, "plan", lambda methods, has_draft: settings_of)
    small = ["--repeats", "2", "--prompts-per-source", "1", "--max-new-tokens", "4"]
    return ["generate", *small, "--prompts", str(prompt_file), "--output", str(tmp_path / "out")]


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_the_page_that_asks_a_question_cites_its_benchmark(name):
    command = main.resolve_command(click.Context(main), [name])[1]
    assert command is not None
    [page] = re.findall(r"\n\nAsked by (\S+)\.$", inspect.cleandoc(command.help or ""))
    assert re.search(rf"benchmarks {name}\b|results/{name}\b", (ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("after", "kept"), [(8 + 8 + 3, [1]), (8 + 16 + 8 + 1, [2, 1])])
def test_an_interrupted_run_writes_what_it_has(loaded, tmp_path, monkeypatch, after, kept):
    monkeypatch.setattr(bench_run, "measure", interrupted(bench_run.measure, after))
    call(*loaded, code=130)
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert document["partial"] is True
    assert all([len(r["seconds"]) for r in result["repeats"]] == kept for result in document["results"])
    assert "interrupted" in (tmp_path / "out" / "bench.md").read_text().splitlines()[0]


def test_a_run_that_fails_while_warming_up_leaves_an_older_result_alone(loaded, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bench.json").write_text("older")
    monkeypatch.setattr(bench_run, "measure", lambda *_: 1 / 0)
    assert CliRunner().invoke(main, loaded).exit_code == 1
    assert (tmp_path / "out" / "bench.json").read_text() == "older"
