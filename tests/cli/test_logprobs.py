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


def test_translations_have_them_too(run: Run, translation: Path, tmp_path: Path) -> None:
    command = ["translate", "--target", str(translation / "target"), "--max-new-tokens", "5", "--logprobs", "1"]
    refused = run(*command, "a b")
    assert (refused.exit_code, "--json" in refused.stderr) == (2, True)
    result = run(*command, "a b", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["token_id"] for one in found["logprobs"]] == found["token_ids"]
    assert all(one["top"][0]["token_id"] == one["token_id"] for one in found["logprobs"])  # greedy
