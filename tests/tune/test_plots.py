"""Reports: what is drawn is what was measured."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from draftwood.core.errors import ConfigError
from draftwood.draft.adaptive.learnt import Costs
from draftwood.tune.charts import Bar, draw_bars, draw_costs
from draftwood.tune.plots import Measured, accepted_by, charts, check_report, estimates_of, forwards_of, write_report
from tests.browser import serious
from tests.trace.builder import Maker
from tests.trace.test_figures import boxes, groups, overlapping, parsed

TRACES = {0.0: [Maker(1).trace(6)], 1.0: [Maker(2).trace(5), Maker(3).trace(4)]}
COSTS = Costs(base=0.02, tree=0.001, node=0.0005, change=0.0, level=0.004, frontier_node=0.0001)


def bar(label, value, **more):
    return Bar(label=label, value=value, shown=f"{value:.1f}", **more)


BARS = {
    "temperature 0": [
        bar("plain decoding", 10.0, low=9.0, high=11.0),
        bar("auto", 20.0, low=18.0, high=21.0, marked=True),
    ],
    "temperature 1": [bar("a method of a name that is much longer than its bar", 8.0), bar("<script>", 0.0)],
}
MEASURED = Measured(
    title="a <test> & more",
    speeds={0.0: BARS["temperature 0"], 1.0: BARS["temperature 1"]},
    note="tokens per second",
    traces=TRACES,
    costs=COSTS,
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


@pytest.mark.parametrize("width", [360, 520, 1056])
def test_a_bar_is_as_long_as_its_value_and_has_its_number(width):
    svg = draw_bars("speeds", BARS, note="tokens per second", width=width, one=1.0)
    drawn = groups(svg, "bar")
    lengths = {}
    for group, given in zip(drawn, [one for bars in BARS.values() for one in bars], strict=True):
        box, *whisker = group.findall("{*}rect")
        assert float(group.get("data-value")) == given.value
        assert group.findall("{*}text")[-1].text == given.shown
        assert ("c3" in box.get("class")) == given.marked
        lengths[given.label] = float(box.get("width"))
        assert len(whisker) == (given.low is not None)
        for line in whisker:
            start, long = float(line.get("x")) - float(box.get("x")), float(line.get("width"))
            scale = lengths[given.label] / given.value
            assert (start, start + long) == pytest.approx((given.low * scale, given.high * scale), abs=0.2)
    assert lengths["auto"] == pytest.approx(2 * lengths["plain decoding"], abs=0.2)


def test_costs_are_drawn_where_they_were_measured():
    points, line = [(1, 20.0), (4, 30.0), (10, 25.0)], estimates_of(COSTS, 10)
    assert (line[0], line[3]) == ((1, pytest.approx(20.0)), (4, pytest.approx(22.5)))
    found = groups(draw_costs("costs", points, line, note="a note"), "point")
    assert [(int(g.get("data-nodes")), float(g.get("data-ms"))) for g in found] == points
    at = [(float(box.get("x")), float(box.get("y"))) for box in (group.find("{*}rect") for group in found)]
    assert (at[2][0] - at[0][0]) / (at[1][0] - at[0][0]) == pytest.approx(3, abs=0.01)
    assert (at[0][1] - at[2][1]) / (at[0][1] - at[1][1]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("width", [360, 520, 1056])
def test_no_text_of_a_chart_overlaps_another_or_leaves_it(width):
    for svg in charts(MEASURED, width):
        found = boxes(svg)
        right, bottom = map(float, parsed(svg).get("viewBox").split()[2:])
        assert right == width
        assert not overlapping(found)
        assert not [box for box in found if box[0] < 0 or box[1] < 0 or box[2] > right or box[3] > bottom]


@pytest.mark.parametrize("name", ["report.svg", "report.html"])
def test_a_report_is_written(tmp_path, name):
    path = tmp_path / name
    check_report(path)
    write_report(path, MEASURED)
    text = path.read_text(encoding="utf-8")
    if name.endswith("svg"):
        assert ET.fromstring(text).tag.endswith("svg")
    else:
        assert "<title>a &lt;test&gt; &amp; more</title>" in text
    assert text.count('class="dw-figure"') == 4
    assert "<test>" not in text
    assert "<script>" not in text


@pytest.mark.parametrize(("width", "dark"), [(380, False), (800, True), (1400, False)])
def test_in_chromium_a_report_can_be_read_at_every_width(browser, tmp_path, width, dark):
    write_report(tmp_path / "report.html", MEASURED)
    browser.size(width, dark=dark)
    browser.open(tmp_path / "report.html")
    assert browser.js("return document.documentElement.scrollWidth") <= width
    sizes = browser.js(
        "return [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
    )
    assert len(sizes) == 4
    assert min(sizes) > 0.9  # letters of 11 pixels stay legible
    card = "getComputedStyle(document.querySelector('.card')).fill"
    lightness = f"return {card}.match(/\\d+/g).reduce((sum, part) => sum + +part, 0)"
    assert (browser.js(lightness) < 300) == dark
    assert not serious(browser)


def test_a_report_without_traces_and_costs_is_written(tmp_path):
    write_report(tmp_path / "report.svg", Measured(title="speeds", speeds=MEASURED.speeds, note="tokens per second"))
    assert (tmp_path / "report.svg").read_text(encoding="utf-8").count('class="dw-figure"') == 1


def test_other_names_and_missing_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.svg or \.html"):
        check_report(tmp_path / "report.png")
    with pytest.raises(ConfigError, match="--report"):
        check_report(tmp_path / "none" / "report.svg")
