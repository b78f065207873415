"""``--logprobs`` of ``draftwood generate`` and ``translate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

SHORT = ["--max-new-tokens", "6", "--ignore-eos", "--seed", "5", "--method", "rsd-c", "--shape", "2-1"]


def test_json_has_an_entry_for_every_token(run: Run, pair: list[str]) -> None:
    result = run("generate", *pair, *SHORT, "the fox", "--json", "--logprobs", "2")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    entries = found["logprobs"]
    assert [one["token_id"] for one in entries] == found["token_ids"]
    assert "".join(one["token"] for one in entries) == found["text"]
    for one in entries:
        assert len(one["top"]) == 2
        assert one["logprob"] <= one["top"][0]["logprob"] < 0
        assert one["top"][0].keys() == {"token_id", "token", "logprob"}
    without = json.loads(run("generate", *pair, *SHORT, "the fox", "--json").stdout)
    assert "logprobs" not in without
    assert without["text"] == found["text"]


def test_files_hold_them_and_resume_with_the_same_settings_only(
    run: Run, pair: list[str], prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    command = ["generate", *pair, *SHORT, "--input", prompts, "--output", out]
    assert run(*command, "--logprobs", "1", "--logprobs-of", "sampled").exit_code == 0
    whole = out.read_text(encoding="utf-8").splitlines()
    assert all(len(json.loads(line)["logprobs"]) == 6 for line in whole)
    out.write_text("\n".join(whole[:3]) + "\n", encoding="utf-8")
    for options in ([], ["--logprobs", "2", "--logprobs-of", "sampled"], ["--logprobs", "1"]):
        refused = run(*command, *options)
        assert refused.exit_code == 2
        assert "logprobs" in refused.stderr
    assert run(*command, "--logprobs", "1", "--logprobs-of", "sampled").exit_code == 0
    assert [json.loads(line)["text"] for line in out.read_text(encoding="utf-8").splitlines()] == [
        json.loads(line)["text"] for line in whole
    ]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["the fox", "--logprobs", "1"], "--logprobs 1 is for JSON, and this output is plain text: add --json"),
        (["the fox", "--json", "--logprobs", "21"], "logprobs is 21"),
        (["the fox", "--json", "--logprobs-of", "sampled"], "belongs to --logprobs N"),
        (
            ["the fox", "--json", "--logprobs", "1", "--logprobs-of", "sampled", "--beta", "2", "--temperature", "0"],
            "tolerance",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(run: Run, pair: list[str], options: list[str], wanted: str) -> None:
    result = run("generate", *pair, *options)
    assert result.exit_code == 2
    assert wanted in result.stderr


def test_a_line_may_not_set_them(run: Run, pair: list[str], tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"prompt": "the fox", "logprobs": 3}) + "\n", encoding="utf-8")
    result = run("generate", *pair, *SHORT, "--input", lines)
    assert result.exit_code == 1
    assert "'logprobs' is set for the whole run, with --logprobs" in result.stderr


def test_translations_have_them_too(run: Run, translation: Path, tmp_path: Path) -> None:
    command = ["translate", "--target", str(translation / "target"), "--max-new-tokens", "5", "--logprobs", "1"]
    refused = run(*command, "a b")
    assert (refused.exit_code, "--json" in refused.stderr) == (2, True)
    result = run(*command, "a b", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["token_id"] for one in found["logprobs"]] == found["token_ids"]
    assert all(one["top"][0]["token_id"] == one["token_id"] for one in found["logprobs"])  # greedy
