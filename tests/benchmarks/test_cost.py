"""What forwards cost, alone and while the draft model computes, and the plots of it: from the JSON alone."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Barrier, get_ident
from types import SimpleNamespace

import pytest
import torch

from benchmarks import cost, overlap
from benchmarks.config import CostConfig
from benchmarks.cost import bandwidth, limit, markdown, measure
from benchmarks.overlap import CHAIN, WAYS, check_room
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.tune.documents import text_of
from tests.benchmarks.tiny import call


def test_every_size_is_measured_behind_every_context(pair: Pair) -> None:
    config, ends = CostConfig(tokens=(1, 3), context=(5, 20), repeats=4), []
    document = measure(config, {"torch": pair}, lambda: ends.append(1))
    assert len(ends) == 2
    assert [(r["context"], r["tokens"]) for r in document["milliseconds"]] == [(5, 1), (5, 3), (20, 1), (20, 3)]
    assert all(0 < r["least"] <= r["median"] <= r["most"] for r in document["milliseconds"])
    assert document["model"]["bytes"] == 4 * document["model"]["parameters"]
    assert json.loads(text_of(document)) == document
    with pytest.raises(ConfigError, match="python -m benchmarks inflate"):
        measure(CostConfig(context=(150,)), {"torch": pair}, lambda: None)


def test_the_forwards_are_those_that_were_asked_for(pair: Pair) -> None:
    sizes = []
    hook = pair.target.model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        measure(CostConfig(tokens=(2, 4), context=(10,), repeats=3), {"torch": pair}, lambda: None)
    finally:
        hook.remove()
    assert sizes == [11, 2, 4, *[2, 2, 4, 4] * 3]  # each that is timed is behind one of its own size


def test_the_table_says_how_many_times_one_token_it_takes() -> None:
    document = made_up()
    assert limit(document) == pytest.approx(10.0)
    assert "| 64 | 12.00 (11.00 to 14.00); 1.00; 1.20 | 18.00 (17.00 to 20.00); 1.50; 1.80 |" in markdown(document)


def made_up() -> dict:
    times = [
        {"backend": "torch", "context": 64, "tokens": n, "median": 9.0 + 3 * n, "least": 8.0 + 3 * n, "most": 11.0 + 3 * n}
        for n in (1, 3)
    ]
    return {
        "format": 1, "kind": "cost", "config": {"tokens": [1, 3], "context": [64], "repeats": 5},
        "versions": {"torch": "x"}, "machine": {"cpu": "c", "accelerator": None, "cores": 2, "torch_threads": 2},
        "model": {"type": "llama", "parameters": 25_000_000, "bytes": 100_000_000, "dtype": "float32",
                  "label": "cost-inflated copy of x"},
        "bytes_per_second": 1e10, "milliseconds": times,
    }  # fmt: skip


def test_reading_memory_takes_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_BYTES", 1 << 20)
    clock = iter([0.0, 2.0, 2.0, 3.0, *[float(i) * 5 for i in range(1, 11)]])
    monkeypatch.setattr(cost, "perf_counter", lambda: next(clock))
    assert bandwidth(torch.device("cpu")) == 1 << 20  # the best: a second


def test_plots_are_drawn_from_the_files(measured: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "cost.json").write_text(text_of(made_up()))
    bench = measured.writer.config.output / "bench.json"
    names = ["speed-t0", "efficiency-t0-1", "speed-t1", "efficiency-t1-1", "cost-1"]
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        run = call("plot", bench, tmp_path / "cost.json", "--form", form, "--output", tmp_path / "plots")
        paths = [tmp_path / "plots" / f"{name}.{form}" for name in names]
        assert run.stdout.split() == [str(path) for path in paths]
        assert all(path.read_bytes().startswith(start) for path in paths)
    (tmp_path / "x.json").write_text("{}")
    assert "x.json is no result" in call("plot", tmp_path / "x.json", code=2).output


def test_the_lines_are_the_figures(measured: SimpleNamespace) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    from benchmarks import plot

    axes = figure.Figure().subplots()
    assert plot.cost(axes, made_up())
    drawn = [line.get_xydata().tolist() for line in axes.lines if len(line.get_xydata()) == 2]
    assert [[1.0, 12.0], [3.0, 18.0]] in drawn
    assert any({y for _, y in line} == {10.0} for line in drawn)  # the memory's limit
    axes = figure.Figure().subplots()
    assert plot.efficiency(axes, measured.document, 1.0)
    drafting = [r for r in measured.document["results"] if r["temperature"] == 1 and r["nodes"]]
    lines = {tuple(point) for line in axes.lines for point in line.get_xydata().tolist()}
    assert {(r["nodes"], r["block_efficiency"]) for r in drafting} <= lines
    assert not plot.efficiency(axes, measured.document, 1.0, 4)  # nothing was measured in batches of 4
    torch_run, both = json.loads(json.dumps([measured.document] * 2))
    del torch_run["config"]["backend"]  # as in documents from before there was another one
    both["config"]["backend"], both["models"]["target"]["parameters"] = "both", 2000
    for result in both["results"]:
        if result["method"] in plot.OURS:
            result["method"] += " (native)"
    axes = figure.Figure().subplots()
    assert plot.speed(axes, [torch_run, both], 1.0)
    points = {c.get_label(): len(c.lines[0].get_xydata()) for c in axes.containers}
    assert (points["ar (native)"], points["ar (torch)"], points["generate"]) == (1, 1, 2)  # a line is of one backend


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
    [result] = overlap.measure({"torch": pair}, 5, (3,), 1)
    assert all(result[way] > 0 for way in WAYS)
    assert (True, False) in calls


def test_a_draft_without_room_is_refused_and_nothing_is_timed_without_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = pair.draft.max_length - 5 * CHAIN
    check_room({"torch": pair}, room)
    assert len(overlap.measure({"torch": pair}, room, (1, 3), 1)) == 2
    with pytest.raises(ConfigError, match=r"of the draft, which has .* without a draft"):
        check_room({"torch": pair}, room + 1)
    assert overlap.measure({"torch": Pair(pair.target.model, None, pair.tokenizer)}, 5, (1,), 1) == []
    assert overlap.markdown([]) == ""
    monkeypatch.setattr(pair.target, "device", torch.device("cuda"))
    check_room({"torch": pair}, 10**6)
    assert overlap.measure({"torch": pair}, 5, (1,), 1) == []


def test_the_command_writes_both_tables(tmp_path: Path) -> None:
    report = call("cost", "--tokens", 1, "--context", 5, "--repeats", 1, "--output", tmp_path, "--backend", "both").output
    document = json.loads((tmp_path / "cost.json").read_text())
    assert [one["backend"] for one in document["milliseconds"]] == ["torch", "native"]
    assert {r["tokens"] for r in document["overlap"]} == {1}
    assert (tmp_path / "cost.md").read_text().strip() in report
