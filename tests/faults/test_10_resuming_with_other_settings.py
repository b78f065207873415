"""An output is completed under the settings that it was begun with, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwood import Limits, Method, Sampling
from draftwood.cli.job.resume import difference, text_facts
from draftwood.engine.decode import Decoder
from tests.cli.conftest import Run

SHORT = ["--max-new-tokens", "8", "--ignore-eos", "--batch-size", "2"]


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


def keep(path: Path, count: int) -> None:
    """Leave so many answers of an output, as a stopped run does."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:count]))


def texts(path: Path) -> list[tuple[int, str, int]]:
    return sorted((found["index"], found["text"], found["seed"]) for found in objects(path))


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.jsonl"
    path.write_text("".join(f'{{"prompt": "the fox {i}"}}\n' for i in range(4)), encoding="utf-8")
    return path


OTHER = [
    (["--max-new-tokens", "9"], "max_new_tokens 8, which is now 9"),
    (["--temperature", "0.5"], "temperature 1.0, which is now 0.5"),
    (["--top-k", "3"], "top_k 0, which is now 3"),
    (["--logit-bias", "7=-inf"], "logit_bias [], which is now ['7=-inf']"),
    (["--stop", "fox"], "stop [], which is now ['fox']"),
    (["--method", "rsd-s"], "method 'adaptive', which is now 'rsd-s'"),
    (["--dtype", "float64"], "dtype 'float32', which is now 'float64'"),
    (["--seed", "6"], "seed 5, which is now 6"),
]


@pytest.mark.parametrize(("options", "said"), OTHER)
@pytest.mark.parametrize("left", [4, 2])
def test_other_settings_are_refused_and_the_difference_is_named(
    run: Run, pair: list[str], few: Path, tmp_path: Path, options: list[str], said: str, left: int
) -> None:
    out = tmp_path / "out.jsonl"
    command = ["generate", *pair, *SHORT, "--seed", "5", "--input", few, "--output", out]
    assert run(*command).exit_code == 0
    keep(out, left)
    before = out.read_bytes()
    result = run(*command, *options)
    assert result.exit_code == 2, result.output
    assert f"{out}, line 1: this was made with " in result.stderr
    assert said in result.stderr
    assert ": give the same options as before, or name another --output" in result.stderr
    assert out.read_bytes() == before


def test_another_model_is_refused_under_its_old_name_too(run: Run, models: Path, few: Path, tmp_path: Path) -> None:
    target, out = tmp_path / "target", tmp_path / "out.jsonl"
    shutil.copytree(models / "target", target)
    command = ["generate", "--target", target, *SHORT, "--seed", "5", "--input", few, "--output", out]
    assert run(*command).exit_code == 0
    other = run(*command, "--target", models / "draft")
    assert (other.exit_code, f"target '{target}', which is now '{models / 'draft'}'" in other.stderr) == (2, True)
    drafted = run(*command, "--draft", models / "draft")
    assert (drafted.exit_code, f"draft None, which is now '{models / 'draft'}'" in drafted.stderr) == (2, True)
    shutil.rmtree(target)
    shutil.copytree(models / "draft", target)
    changed = run(*command)
    assert changed.exit_code == 2, changed.output
    assert f"target '{target}', whose files have changed since" in changed.stderr


def test_the_same_model_under_another_name_is_taken(run: Run, models: Path, few: Path, tmp_path: Path) -> None:
    target, out = tmp_path / "target", tmp_path / "out.jsonl"
    shutil.copytree(models / "target", target)
    command = ["generate", *SHORT, "--seed", "5", "--input", few, "--output", out]
    assert run(*command, "--target", target).exit_code == 0
    whole = texts(out)
    keep(out, 1)
    assert run(*command, "--target", models / "target").exit_code == 0
    assert texts(out) == whole


def test_what_changes_no_text_may_change(run: Run, pair: list[str], few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = ["generate", *pair, *SHORT, "--seed", "5", "--input", few, "--output", out]
    assert run(*command).exit_code == 0
    whole = texts(out)
    keep(out, 2)
    assert run(*command, "--batch-size", "1").exit_code == 0
    assert texts(out) == whole
    written = run(*command, "--temperature", "1")  # the model's own setting, written out
    assert written.exit_code == 0, written.output
    assert texts(out) == whole


def test_a_drawn_seed_is_remembered_even_if_every_answer_has_its_own(run: Run, pair: list[str], tmp_path: Path) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"prompt": "the", "seed": 7}\n{"prompt": "fox"}\n{"prompt": "hen"}\n', encoding="utf-8")
    command = ["generate", *pair, *SHORT, "--input", path, "--output", out]
    assert run(*command).exit_code == 0
    whole = texts(out)
    keep(out, 1)
    assert run(*command).exit_code == 0
    assert texts(out) == whole


def test_an_output_of_an_earlier_version_is_not_completed(run: Run, pair: list[str], few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = ["generate", *pair, *SHORT, "--input", few, "--output", out]
    assert run(*command).exit_code == 0
    old = [json.dumps({k: v for k, v in found.items() if k != "settings"}) + "\n" for found in objects(out)]
    out.write_text("".join(old), encoding="utf-8")
    whole = run(*command)
    assert whole.exit_code == 0
    assert f"All 4 prompts are answered in {out} already; the file does not say with which settings." in whole.stderr
    out.write_text("".join(old[:2]), encoding="utf-8")
    refused = run(*command)
    assert refused.exit_code == 2
    assert f"{out}, line 1: this answer of an earlier version of Draftwood holds no settings" in refused.stderr
    assert "name another --output, or remove the file" in refused.stderr
    assert out.read_text(encoding="utf-8") == "".join(old[:2])


def test_a_translation_killed_at_the_very_end_is_not_taken_for_another(
    run: Run, translation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwood.cli.job import output as sentences

    path, out = tmp_path / "german.txt", tmp_path / "english.txt"
    path.write_text("ein Haus\nein Boot\n", encoding="utf-8")
    command = ["translate", "--target", translation / "target", "--input", path, "--output", out]
    real = sentences.replace_file

    def killed(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(sentences, "replace_file", killed)
    assert run(*command).exit_code == 130
    monkeypatch.setattr(sentences, "replace_file", real)
    other = run(*command, "--max-new-tokens", "3")
    assert other.exit_code == 2, other.output
    assert "which is now 3" in other.stderr
    same = run(*command)
    assert (same.exit_code, "All 2 lines are translated" in same.stderr) == (0, True), same.output


def test_a_stopped_translation_of_an_earlier_version_is_refused_in_a_sentence(
    run: Run, translation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "german.txt", tmp_path / "english.txt"
    path.write_text("ein Haus\n", encoding="utf-8")
    partial = tmp_path / "english.txt.partial"
    partial.write_text('{"settings": {"target": "0123", "draft": null, "max_new_tokens": 39}}\n', encoding="utf-8")
    result = run("translate", "--target", translation / "target", "--input", path, "--output", out)
    assert result.exit_code == 2
    assert "settings that it does not hold (tokenizer, dtype, engine" in result.stderr
    assert result.stderr.count("\n") == 1


def test_control_a_stopped_run_goes_on_with_the_seed_that_was_drawn(
    run: Run, pair: list[str], few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    command = ["generate", *pair, *SHORT, "--input", few, "--output", out]
    real = Decoder.results

    def stopped(*args: Any, **more: Any) -> Iterator[Any]:
        yield next(real(*args, **more))
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "results", stopped)
    assert run(*command).exit_code == 130
    monkeypatch.setattr(Decoder, "results", real)
    assert run(*command).exit_code == 0
    assert [found["index"] for found in sorted(objects(out), key=lambda found: found["index"])] == [0, 1, 2, 3]
    assert len({found["seed"] - found["index"] for found in objects(out)}) == 1


def test_processors_that_a_generation_config_asks_for_count_with_their_settings() -> None:
    from transformers import NoRepeatNGramLogitsProcessor, SuppressTokensLogitsProcessor

    def facts(*processors: Any) -> dict[str, Any]:
        return text_facts(Method(), Sampling(processors=list(processors)), Limits())

    two, three = NoRepeatNGramLogitsProcessor(2), NoRepeatNGramLogitsProcessor(3)
    assert difference(facts(two), facts(NoRepeatNGramLogitsProcessor(2))) is None
    name = "NoRepeatNGramLogitsProcessor"
    said = f"processors ['{name}(ngram_size=2)'], which is now ['{name}(ngram_size=3)']"
    assert difference(facts(two), facts(three)) == said
    assert difference(facts(two), facts(two, SuppressTokensLogitsProcessor([1]))) is not None
    assert difference(facts(SuppressTokensLogitsProcessor([2])), facts(SuppressTokensLogitsProcessor([1]))) is not None
    assert json.loads(json.dumps(facts(two))) == facts(two)


def test_warpers_that_a_generation_config_asks_for_count_with_their_settings() -> None:
    from transformers import EpsilonLogitsWarper, EtaLogitsWarper, TypicalLogitsWarper

    def facts(*warpers: Any) -> dict[str, Any]:
        return text_facts(Method(), Sampling(warpers=list(warpers)), Limits())

    def all_of_them(mass: float) -> list[Any]:
        return [TypicalLogitsWarper(mass), EpsilonLogitsWarper(0.01), EtaLogitsWarper(0.02)]

    first, second = all_of_them(0.5), all_of_them(0.5)  # both are alive, so they have different addresses
    assert difference(facts(*first), facts(*second)) is None
    said = difference(facts(*first), facts(*all_of_them(0.6)))
    assert said is not None
    assert said.startswith("warpers ['TypicalLogitsWarper(")
    assert "mass=0.6" in said


def test_processors_that_count_from_the_prompt_and_nested_settings_count_too() -> None:
    from transformers import MinNewTokensLengthLogitsProcessor, SequenceBiasLogitsProcessor

    from draftwood.sampling.processors import ByPrompt

    def facts(least: int, bias: float) -> dict[str, Any]:
        counting = ByPrompt(lambda length: MinNewTokensLengthLogitsProcessor(length, least, [0]))
        sequences = SequenceBiasLogitsProcessor({(1, 2): bias})
        return text_facts(Method(), Sampling(processors=[counting, sequences]), Limits())

    assert difference(facts(3, 1.0), facts(3, 1.0)) is None
    assert difference(facts(3, 1.0), facts(4, 1.0)) is not None
    assert difference(facts(3, 1.0), facts(3, 2.0)) is not None


def edited(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


EDITS: list[tuple[str, dict[str, Any], str]] = [
    ("generation_config.json", {"eos_token_id": [0, 7]}, "eos [0], which is now [0, 7]"),
    ("generation_config.json", {"forced_eos_token_id": 9}, "final_token None, which is now 9"),
    ("generation_config.json", {"min_new_tokens": 3}, "processors [], which is now ['MinNewTokensLength"),
    ("tokenizer_config.json", {"padding_side": "left"}, "whose files have changed since"),
]


@pytest.mark.parametrize(("name", "values", "said"), EDITS)
def test_edited_files_of_a_target_are_noticed(
    run: Run, models: Path, few: Path, tmp_path: Path, name: str, values: dict[str, Any], said: str
) -> None:
    target, out = tmp_path / "target", tmp_path / "out.jsonl"
    shutil.copytree(models / "target", target)
    command = ["generate", "--target", target, *SHORT, "--seed", "5", "--input", few, "--output", out]
    assert run(*command).exit_code == 0
    keep(out, 2)
    edited(target, name, **values)
    result = run(*command)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert len(objects(out)) == 2


def test_another_tokenizer_is_noticed_when_all_is_answered(run: Run, models: Path, few: Path, tmp_path: Path) -> None:
    target, out = tmp_path / "target", tmp_path / "out.jsonl"
    shutil.copytree(models / "target", target)
    command = ["generate", "--target", target, *SHORT, "--seed", "5", "--input", few, "--output", out]
    assert run(*command).exit_code == 0
    edited(target, "tokenizer_config.json", padding_side="left")
    result = run(*command)
    assert result.exit_code == 2, result.output
    assert f"tokenizer '{target}', whose files have changed since" in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("generation_config.json", {"forced_eos_token_id": 9}, "final_token "),
        ("tokenizer_config.json", {"padding_side": "left"}, "tokenizer '"),
    ],
)
def test_edited_files_of_a_translating_target_are_noticed(
    run: Run, translation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: dict[str, Any], said: str
) -> None:
    from draftwood.cli.job import output as sentences

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    target, path, out = tmp_path / "target", tmp_path / "german.txt", tmp_path / "english.txt"
    shutil.copytree(translation / "target", target)
    path.write_text("ein Haus\nein Boot\n", encoding="utf-8")
    command = ["translate", "--target", target, "--input", path, "--output", out]
    monkeypatch.setattr(sentences, "replace_file", killed)
    assert run(*command).exit_code == 130
    monkeypatch.undo()
    edited(target, name, **value)
    result = run(*command)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
