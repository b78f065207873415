"""Plain decoding and ``auto`` in turn: which cases there are, what they hold, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import draftwood
from benchmarks.never_slower import run as never_slower
from benchmarks.never_slower.config import NeverSlowerConfig
from draftwood import LoadOptions
from draftwood.api import Pair
from draftwood.engine.decode import Decoder
from tests.benchmarks.tiny import call

SMALL = NeverSlowerConfig(backend="torch", batch="2", temperatures="0,1", max_new_tokens=6, repeats=2)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[object, ...], set[tuple[str, ...]]]:
    """The texts of every case that were written, by its temperature, prompts and seeds; there are no pauses."""
    monkeypatch.setattr(never_slower, "PAUSE", 0.0)
    monkeypatch.setattr(never_slower, "_TAUGHT_TOKENS", 0)
    texts: dict[tuple[object, ...], set[tuple[str, ...]]] = {}
    generate = Decoder.generate

    def noted(self, requests, sampling, **more):
        results = generate(self, requests, sampling, **more)
        case = (sampling.temperature, *((tuple(request.prompt), request.seed) for request in requests))
        texts.setdefault(case, set()).add(tuple(result.text or str(result.token_ids) for result in results))
        return results

    monkeypatch.setattr(Decoder, "generate", noted)
    return texts


def test_both_write_the_same_tokens_in_every_case(pair: Pair, written: dict) -> None:
    ends: list[int] = []
    results = never_slower.measure(SMALL, pair, "torch", lambda: ends.append(1))
    assert len(results) == 3 * 2 * 3 * 2  # drafts, temperatures, texts, states
    assert len(ends) == never_slower.count(SMALL, drafts=3)
    assert {len(texts) for texts in written.values()} == {1}
    for found in results:
        assert found["ratios"] == [a / b for a, b in zip(found["plain_seconds"], found["auto_seconds"], strict=True)]
        assert found["tokens_per_pass"] >= 1.0


def test_texts_of_a_schema_are_the_same_and_validate(written: dict, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["red", "green", "blue"]}')
    config = NeverSlowerConfig(
        backend="torch", batch="2", temperatures="1", drafts="own", max_new_tokens=12, repeats=1, json_schema=schema
    )
    bundled = draftwood.load(options=LoadOptions(backend="torch", profile="none"))
    results = never_slower.measure(config, bundled, "torch", lambda: None)
    assert {len(texts) for texts in written.values()} == {1}
    assert {json.loads(text) for [texts] in written.values() for text in texts} <= {"red", "green", "blue"}
    assert all(found["tokens_per_second"] * found["auto_seconds"][0] < 2 * 12 for found in results)


def test_the_command_writes_a_table_and_its_numbers(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(never_slower, "PAUSE", 0.0)
    monkeypatch.setattr(never_slower, "open_pair", lambda config, backend: pair)
    options = [
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
    shown = call("never-slower", *options, "--output", tmp_path)
    document = json.loads((tmp_path / "never-slower.json").read_text())
    low = sum(found["ratio"] < 0.97 for found in document["results"])
    assert f"{6 - low} of 6 lines at 0.97 or above." in shown.output
