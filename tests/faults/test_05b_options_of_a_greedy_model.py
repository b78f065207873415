"""What fits temperature 0 is taken where the generation config, not an option, asks for the most likely text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run

SHORT = ["--max-new-tokens", "4", "--ignore-eos", "--seed", "5"]


@pytest.fixture
def greedy(models: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "greedy"
    shutil.copytree(models / "target", folder)
    path = folder / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({name: config[name] for name in config if name not in ("do_sample", "top_k")}))
    return folder


@pytest.mark.parametrize("options", [["--verifier", "greedy"], ["--beta", "3"], ["--verifier", "tolerance"]])
def test_a_greedy_model_takes_what_is_for_temperature_0(run: Run, greedy: Path, options: list[str]) -> None:
    result = run("generate", "--target", greedy, *SHORT, *options, "the fox")
    assert result.exit_code == 0, result.output
    assert run("generate", "--target", greedy, *SHORT, *options, "--temperature", "0", "the fox").stdout == result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--verifier", "greedy"], "is for temperature 0 only, but temperature is 1"),
        (["--beta", "3"], "beta and tau are for temperature 0"),
        (["--verifier", "tolerance"], "verifier 'tolerance' is for temperature 0 only"),
    ],
)
def test_a_model_that_samples_refuses_it_before_anything_is_written(
    run: Run, models: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"prompt": "the"}\n', encoding="utf-8")
    result = run("generate", "--target", models / "target", *SHORT, *options, "--input", path, "--output", out)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert not out.exists()


@pytest.mark.parametrize("options", [["--verifier", "greedy", "--shape", "no"], ["--method", "ngram", "--shape", "2-2"]])
def test_what_fits_neither_is_refused_before_models_are_loaded(run: Run, tmp_path: Path, options: list[str]) -> None:
    result = run("generate", "--target", tmp_path / "nowhere", *SHORT, *options, "the fox")
    assert (result.exit_code, "shape" in result.stderr) == (2, True), result.output


def test_a_given_temperature_is_checked_before_models_are_loaded(run: Run, tmp_path: Path) -> None:
    options = ["--verifier", "greedy", "--temperature", "0.5"]
    result = run("generate", "--target", tmp_path / "nowhere", *SHORT, *options, "the fox")
    assert (result.exit_code, "but temperature is 0.5" in result.stderr) == (2, True), result.output
