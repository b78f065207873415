"""Reports: what is drawn is what was measured."""

from __future__ import annotations

import builtins
import xml.etree.ElementTree as ET

import pytest

from draftwood.core.errors import ConfigError
from draftwood.draft.adaptive.learnt import Costs
from draftwood.tune.plots import Measured, accepted_by, check_report, forwards_of, write_report
from tests.trace.builder import Maker

TRACES = {0.0: [Maker(1).trace(6)], 1.0: [Maker(2).trace(5), Maker(3).trace(4)]}
MEASURED = Measured(
    title="a <test> & more",
    speeds={0.0: {"plain": (10.0, 9.0, 11.0), "auto": (20.0, 18.0, 21.0)}, 1.0: {"plain": (8.0, 8.0, 8.0)}},
    traces=TRACES,
    costs=Costs(base=0.02, tree=0.001, node=0.0005, change=0.0, level=0.004, frontier_node=0.0001),
)


def test_accepted_tokens_are_counted_by_depth_and_rank():
    rounds = [made for trace in TRACES[1.0] for made in trace.rounds]
    for key, first in (("depth", 0), ("rank", 1)):
        found = accepted_by(TRACES[1.0], key)
        for value, mean in found.items():
            kept = [n for made in rounds for n in made.path if getattr(made.nodes[n], key) + first == value]
            assert mean == pytest.approx(len(kept) / len(rounds))
        assert sum(found.values()) == pytest.approx(sum(len(made.path) for made in rounds) / len(rounds))


def test_every_forward_but_the_first_is_a_point():
    points = forwards_of(TRACES)
    assert len(points) == 5 + 4 + 3
    assert set(points) == {(10, 20.0)}


@pytest.mark.parametrize("name", ["report.svg", "report.html"])
def test_a_report_is_written(tmp_path, name):
    path = tmp_path / name
    check_report(path)
    write_report(path, MEASURED)
    text = path.read_text(encoding="utf-8")
    if name.endswith("svg"):
        assert ET.fromstring(text).tag.endswith("svg")
    assert "<title>a &lt;test&gt; &amp; more</title>" in text or name.endswith("svg")
    assert "<test>" not in text


def test_a_report_without_traces_and_costs_is_written(tmp_path):
    write_report(tmp_path / "report.svg", Measured(title="speeds", speeds=MEASURED.speeds))
    assert (tmp_path / "report.svg").stat().st_size > 1000


def test_other_names_and_missing_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.svg or \.html"):
        check_report(tmp_path / "report.png")
    with pytest.raises(ConfigError, match="--report"):
        check_report(tmp_path / "none" / "report.svg")


def test_a_missing_matplotlib_is_named(monkeypatch, tmp_path):
    real = builtins.__import__

    def missing(name, *args, **more):
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"draftwood\[plots\]"):
        check_report(tmp_path / "report.svg")
