"""Plain decoding and ``auto`` in turn: which cases there are, what they hold, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import draftwood
from benchmarks.__main__ import main
from benchmarks.never_slower import run as never_slower
from benchmarks.never_slower.config import NeverSlowerConfig
from draftwood import LoadOptions
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.engine.decode import Decoder

SMALL = NeverSlowerConfig(backend="torch", batch="2", temperatures="0,1", max_new_tokens=6, repeats=2)
COMMAND = [
    "never-slower",
    "--backend",
    "torch",
    "--batch",
    "2",
    "--temperatures",
    "1",
    "--max-new-tokens",
    "6",
    "--repeats",
    "2",
    "--drafts",
    "none",
]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(never_slower, "PAUSE", 0.0)


def test_both_write_the_same_tokens_in_every_case(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[tuple[object, ...], set[tuple[tuple[int, ...], ...]]] = {}
    generate = Decoder.generate

    def noted(self, requests, sampling, **more):
        results = generate(self, requests, sampling, **more)
        case = (sampling.temperature, *((tuple(request.prompt), request.seed) for request in requests))
        written.setdefault(case, set()).add(tuple(tuple(result.token_ids) for result in results))
        return results

    monkeypatch.setattr(Decoder, "generate", noted)
    monkeypatch.setattr(never_slower, "_TAUGHT_TOKENS", 0)
    ends: list[int] = []
    results = never_slower.measure(SMALL, pair, "torch", lambda: ends.append(1))
    assert len(results) == 3 * 2 * 3 * 2  # drafts, temperatures, texts, states
    assert len(ends) == never_slower.count(SMALL, drafts=3)
    assert {len(texts) for texts in written.values()} == {1}
    for found in results:
        assert found["ratios"] == [a / b for a, b in zip(found["plain_seconds"], found["auto_seconds"], strict=True)]
        assert found["tokens_per_pass"] >= 1.0


def test_texts_of_a_schema_are_the_same_and_validate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts: list[tuple[int, str]] = []
    generate = Decoder.generate

    def noted(self, requests, sampling, **more):
        results = generate(self, requests, sampling, **more)
        texts.extend((request.seed, result.text) for request, result in zip(requests, results, strict=True))
        return results

    monkeypatch.setattr(Decoder, "generate", noted)
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["red", "green", "blue"]}')
    config = NeverSlowerConfig(
        backend="torch", batch="2", temperatures="1", drafts="own", max_new_tokens=12, repeats=1, json_schema=schema
    )
    bundled = draftwood.load(options=LoadOptions(backend="torch", profile="none"))
    results = never_slower.measure(config, bundled, "torch", lambda: None)
    assert {json.loads(text) for _, text in texts} <= {"red", "green", "blue"}
    assert len({text for seed, text in texts if seed == 1000}) <= len(never_slower.TEXTS) + 1
    assert all(found["tokens_per_second"] * found["auto_seconds"][0] < 2 * 12 for found in results)


def test_the_command_writes_a_table_and_its_numbers(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(never_slower, "open_pair", lambda config, backend: pair)
    shown = CliRunner().invoke(main, [*COMMAND, "--output", str(tmp_path)], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    document = json.loads((tmp_path / "never-slower.json").read_text())
    low = sum(found["ratio"] < 0.97 for found in document["results"])
    assert f"{6 - low} of 6 lines at 0.97 or above." in shown.output
    assert (tmp_path / "never-slower.md").read_text().count("| torch |") == 6


@pytest.mark.parametrize(("settings", "message"), [
    ({"drafts": "own,other"}, "other"),
    ({"states": "old"}, "old"),
    ({"batch": "0"}, "batch"),
    ({"temperatures": "warm"}, "temperatures is 'warm': give numbers from 0 on"),
    ({"repeats": 0}, "repeats is 0: give 1 or more"),
    ({"json_schema": Path("missing.json")}, "json_schema is 'missing.json' .* give a file with a JSON schema"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NeverSlowerConfig(**settings)
