"""Drafting while the target computes: what is timed, and what is said of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from threading import Barrier, get_ident

import pytest
import torch
from click.testing import CliRunner

from benchmarks import overlap
from benchmarks.__main__ import main
from benchmarks.config import CostConfig
from benchmarks.overlap import CHAIN, WAYS, check_room, markdown, measure
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Weights


def test_both_are_timed_alone_in_turn_and_at_the_same_time(pair: Pair) -> None:
    results = measure({"torch": pair}, 5, (1, 3), 2)
    assert [(r["backend"], r["context"], r["tokens"]) for r in results] == [("torch", 5, 1), ("torch", 5, 3)]
    assert all(r[way] > 0 for r in results for way in WAYS)


def test_what_is_done_together_is_done_by_two_threads_at_the_same_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bool, int, bool]] = []
    meeting = Barrier(2, timeout=30)  # passed only by two that are there at once
    inner = overlap.forward

    def forward(runner, size):
        is_target, here = runner is pair.target, get_ident() == main
        drafted = sum(not target for target, _size, _main in calls)
        calls.append((is_target, size, here))
        if not here or (not is_target and drafted in (CHAIN, 4 * CHAIN)):  # the first of those that are done together
            meeting.wait()
        return inner(runner, size)

    main = get_ident()
    monkeypatch.setattr(overlap, "forward", forward)
    measure({"torch": pair}, 5, (3,), 1)
    assert Counter(calls) == {(True, 3, True): 3, (True, 3, False): 2, (False, 1, True): 5 * CHAIN}


def test_the_table_is_the_figures() -> None:
    result = {"backend": "torch", "context": 64, "tokens": 4, "target": 2.0, "draft": 1.0, "in turn": 3.0, "together": 2.4}
    assert "| torch | 4 | 2.00 | 1.00 | 3.00 | 2.40 | 0.80 |" in markdown([result])
    assert "behind 64 tokens" in markdown([result])


def test_without_a_draft_there_is_nothing_to_say(pair: Pair) -> None:
    alone = Pair(pair.target.model, None, pair.tokenizer)
    assert measure({"torch": alone}, 5, (1,), 1) == []
    assert markdown([]) == ""


def test_a_draft_without_room_is_refused(pair: Pair) -> None:
    length = pair.draft.max_length
    assert length is not None
    check_room({"torch": pair}, length - 5 * CHAIN)
    measure({"torch": pair}, length - 5 * CHAIN, (1,), 1)
    with pytest.raises(ConfigError, match=r"of the draft, which has .* without a draft"):
        check_room({"torch": pair}, length - 5 * CHAIN + 1)


def test_on_an_accelerator_nothing_is_timed_or_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair.target, "device", torch.device("cuda"))
    check_room({"torch": pair}, 10**6)
    assert measure({"torch": pair}, 5, (1,), 1) == []


def test_the_command_writes_both_tables(tmp_path: Path) -> None:
    arguments = ["cost", "--tokens", "1", "--context", "5", "--repeats", "1", "--output", str(tmp_path)]
    run = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert run.exit_code == 0
    document = json.loads((tmp_path / "cost.json").read_text())
    assert document["kind"] == "cost"
    assert [r["tokens"] for r in document["overlap"]] == [1]
    report = (tmp_path / "cost.md").read_text()
    assert "## By torch" in report
    assert "## Drafting during the target's forward" in report
    assert report.strip() in run.output


def test_quantized_weights_are_timed_too(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    arguments = ["cost", "--tokens", "1", "--context", "5", "--repeats", "1", "--output", str(tmp_path)]
    run = CliRunner().invoke(main, [*arguments, "--weights", "int8", "--weights", "int4"], catch_exceptions=False)
    assert run.exit_code == 0
    found = json.loads((tmp_path / "cost.json").read_text())["milliseconds"]
    assert [one["backend"] for one in found] == ["torch", "openvino int8", "openvino int4"]


@pytest.mark.parametrize("weights", [("same",), ("int8", "int8")])
def test_weights_that_are_timed_anyway_are_refused(weights: tuple[Weights, ...]) -> None:
    with pytest.raises(ConfigError, match="give int8, int4 or both"):
        CostConfig(weights=weights)
