"""What traces cost: the text is the same in every way, and the figures are those of the stored seconds."""

from __future__ import annotations

import json

import pytest

from benchmarks.tracing.run import BARE, CASES, OFF, ON, between, within
from tests.benchmarks.tiny import call


def test_every_case_is_measured_and_written(tmp_path):
    done = call("trace", "--repeats", "1", "--max-new-tokens", "3", "--shape", "2x2", "--output", tmp_path)
    document = json.loads((tmp_path / "trace.json").read_text())
    assert set(document["seconds"]) == set(CASES)
    for found in document["seconds"].values():
        assert {len(values) for values in found.values()} == {1}
        assert 0 < found["hooks"][0] < found["recorder"][0] < found[ON][0]
    assert (tmp_path / "trace.md").read_text() in done.stdout


def test_ratios_are_taken_inside_each_text():
    seconds = {BARE: [1.0, 2.0, 4.0], OFF: [1.0, 2.02, 4.0], ON: [1.1, 2.4, 4.4], "hooks": [0.0, 0.0, 0.0]}
    seconds["recorder"] = [0.1, 0.4, 0.4]
    assert between(seconds, "off") == pytest.approx((1.0, 1.0, 1.01))
    assert between(seconds, "on")[0] == pytest.approx(1.1)
    assert within(seconds, "on")[0] == pytest.approx(1.1)
    assert within(seconds, "off") == (1.0, 1.0, 1.0)
