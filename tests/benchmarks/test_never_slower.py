"""Plain decoding and ``auto`` in turn: which cases there are, what they hold, and the report."""

import json

from benchmarks.never_slower import run as never_slower
from benchmarks.never_slower.config import NeverSlowerConfig
from draftwood.engine.decode import Decoder
from tests.benchmarks.tiny import call


def test_both_write_the_same_tokens_in_every_case(pair, monkeypatch):
    monkeypatch.setattr(never_slower, "PAUSE", 0.0)
    monkeypatch.setattr(never_slower, "_TAUGHT_TOKENS", 0)
    written = {}
    generate = Decoder.generate

    def noted(self, requests, sampling, **more):
        results = generate(self, requests, sampling, **more)
        case = (sampling.temperature, *((tuple(request.prompt), request.seed) for request in requests))
        written.setdefault(case, set()).add(str([result.token_ids for result in results]))
        return results

    monkeypatch.setattr(Decoder, "generate", noted)
    config = NeverSlowerConfig(backend="torch", batch="2", temperatures="0,1", max_new_tokens=6, repeats=1)
    ends = []
    results = never_slower.measure(config, pair, "torch", lambda: ends.append(1))
    assert len(results) == 3 * 2 * 3 * 2  # drafts, temperatures, texts, states
    assert len(ends) == never_slower.count(config, drafts=3)
    assert {len(texts) for texts in written.values()} == {1}
    for found in results:
        assert found["ratios"] == [a / b for a, b in zip(found["plain_seconds"], found["auto_seconds"], strict=True)]
        assert found["tokens_per_pass"] >= 1.0


def test_the_command_counts_the_lines_that_are_slower(prompt_file, monkeypatch, tmp_path):
    monkeypatch.setattr(never_slower, "PAUSE", 0.0)
    size = "--batch", 2, "--temperatures", 1, "--max-new-tokens", 6, "--repeats", 2
    shown = call("never-slower", "--backend", "torch", "--drafts", "none", *size, "--output", tmp_path)
    document = json.loads((tmp_path / "never-slower.json").read_text())
    low = sum(found["ratio"] < 0.97 for found in document["results"])
    assert f"{6 - low} of 6 lines at 0.97 or above." in shown.output
