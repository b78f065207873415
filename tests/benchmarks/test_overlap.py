"""Drafting while the target computes: what is timed, and what is said of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from threading import Barrier, get_ident

import pytest
import torch

from benchmarks import overlap
from benchmarks.overlap import CHAIN, WAYS, check_room, markdown, measure
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from tests.benchmarks.tiny import call


def test_what_is_done_together_is_done_by_two_threads_at_the_same_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bool, bool]] = []
    meeting = Barrier(2, timeout=30)  # passed only by two that are there at once
    inner = overlap.forward

    def forward(runner, row, size):
        is_target, here = runner is pair.target, get_ident() == main
        drafted = sum(not target for target, _ in calls)
        calls.append((is_target, here))
        if not here or (not is_target and drafted in (CHAIN, 4 * CHAIN)):  # the first of those that are done together
            meeting.wait()
        return inner(runner, row, size)

    main = get_ident()
    monkeypatch.setattr(overlap, "forward", forward)
    [result] = measure({"torch": pair}, 5, (3,), 1)
    assert all(result[way] > 0 for way in WAYS)
    assert (True, False) in calls


def test_the_table_is_the_figures() -> None:
    result = {"backend": "torch", "context": 64, "tokens": 4, "target": 2.0, "draft": 1.0, "in turn": 3.0, "together": 2.4}
    assert "| torch | 4 | 2.00 | 1.00 | 3.00 | 2.40 | 0.80 |" in markdown([result])
    assert "behind 64 tokens" in markdown([result])


def test_a_draft_without_room_is_refused_and_nothing_is_timed_without_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = pair.draft.max_length - 5 * CHAIN
    check_room({"torch": pair}, room)
    assert len(measure({"torch": pair}, room, (1, 3), 1)) == 2
    with pytest.raises(ConfigError, match=r"of the draft, which has .* without a draft"):
        check_room({"torch": pair}, room + 1)
    assert measure({"torch": Pair(pair.target.model, None, pair.tokenizer)}, 5, (1,), 1) == []
    assert markdown([]) == ""
    monkeypatch.setattr(pair.target, "device", torch.device("cuda"))
    check_room({"torch": pair}, 10**6)
    assert measure({"torch": pair}, 5, (1,), 1) == []


def test_the_command_writes_both_tables_and_times_quantized_weights_too(tmp_path: Path) -> None:
    quantized = all(importlib.util.find_spec(name) for name in ("openvino", "nncf"))
    weights = ["--weights", "int4"] if quantized else []
    report = call("cost", "--tokens", 1, "--context", 5, "--repeats", 1, "--output", tmp_path, *weights).output
    document = json.loads((tmp_path / "cost.json").read_text())
    assert [one["backend"] for one in document["milliseconds"]] == ["torch", *(["openvino int4"] if quantized else [])]
    assert {r["tokens"] for r in document["overlap"]} == {1}
    assert (tmp_path / "cost.md").read_text().strip() in report
