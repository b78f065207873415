"""Reports: what is drawn is what was measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from matplotlib.text import Text

from draftwood.core.errors import ConfigError
from draftwood.draft.adaptive.learnt import Costs
from draftwood.tune import charts as drawn
from draftwood.tune.charts import Bar, draw_bars, draw_costs
from draftwood.tune.plots import Measured, accepted_by, charts, check_report, estimates_of, forwards_of, write_report
from tests.browser import serious
from tests.trace.builder import Maker

TRACES = {0.0: [Maker(1).trace(6)], 1.0: [Maker(2).trace(5), Maker(3).trace(4)]}
COSTS = Costs(base=0.02, tree=0.001, node=0.0005, change=0.0, back=0.0, level=0.004, frontier_node=0.0001)


def bar(label, value, **more):
    return Bar(label=label, value=value, shown=f"{value:.1f}", **more)


BARS = {
    "temperature 0": [bar("plain decoding", 10.0, low=9.0, high=11.0), bar("auto", 20.0, low=18.0, high=21.0, marked=True)],
    "temperature 1": [bar("a method of a name that is much longer than its bar", 8.0), bar("<script>", 0.0)],
}
SPEEDS = {0.0: BARS["temperature 0"], 1.0: BARS["temperature 1"]}
MEASURED = Measured(title="a <test> & more", speeds=SPEEDS, note="tokens per second", traces=TRACES, costs=COSTS)


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


def extents(svg, colour):
    """Left, upper, right and lower ends of all shapes of this colour."""
    found = []
    for path in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"):
        if path.get("style", "").startswith(f"{colour}"):
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
            found.append((min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])))
    return found


def words(svg):
    return [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("width", [360, 520, 1056])
def test_a_bar_is_as_long_as_its_value_and_has_its_number(width):
    svg = draw_bars("speeds", BARS, note="tokens per second", width=width)
    plain, other, nothing = extents(svg, "fill: var(--bar)")
    [auto] = extents(svg, "fill: var(--own)")
    scale = (plain[2] - plain[0]) / 10.0
    assert (auto[2] - auto[0], other[2] - other[0], nothing[2] - nothing[0]) == pytest.approx(
        (20 * scale, 8 * scale, 0), abs=0.01
    )
    lines = [(left, right) for left, _, right, _ in extents(svg, "fill: none; stroke: var(--ink); stroke-width: 1.5")]
    start = plain[0]
    for found, wanted in zip(lines, [(9.0, 11.0), (18.0, 21.0)], strict=True):
        assert [(end - start) / scale for end in found] == pytest.approx(wanted, abs=0.01)
    found = words(svg)
    for bars in BARS.values():
        for one in bars:
            assert one.shown in found
            assert all(word in " ".join(found) for word in one.label.split())


def test_costs_are_drawn_where_they_were_measured():
    points, line = [(1, 20.0), (4, 30.0), (10, 25.0)], estimates_of(COSTS, 10)
    assert (line[0], line[3]) == ((1, pytest.approx(20.0)), (4, pytest.approx(22.5)))
    svg = ET.fromstring(draw_costs("costs", points, line, note="a note"))
    at = [
        (float(use.get("x")), float(use.get("y")))
        for use in svg.iter("{http://www.w3.org/2000/svg}use")
        if "var(--own)" in use.get("style", "")
    ]
    assert (at[2][0] - at[0][0]) / (at[1][0] - at[0][0]) == pytest.approx(3, abs=0.01)
    assert (at[0][1] - at[2][1]) / (at[0][1] - at[1][1]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("width", [360, 520, 1056])
def test_no_text_of_a_chart_overlaps_another_or_leaves_it(width, monkeypatch):
    figures = []
    monkeypatch.setattr(drawn, "_svg", lambda figure, name: figures.append(figure) or '<svg height="1">')
    charts(MEASURED, width)
    assert len(figures) == 4
    for figure in figures:
        figure.draw_without_rendering()
        texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible() and text.axes is not None]
        boxes = [text.get_window_extent() for text in [*texts, figure._suptitle, figure._supxlabel]]
        for i, box in enumerate(boxes):
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y1 <= figure.bbox.y1
            assert not [other for other in boxes[:i] if overlap(box, other)]


def overlap(box, other):
    return min(box.x1, other.x1) - max(box.x0, other.x0) > 0.5 and min(box.y1, other.y1) - max(box.y0, other.y0) > 0.5


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
    assert text.count('class="chart"') == 4
    assert "<test>" not in text
    assert "<script>" not in text
    write_report(path, Measured(title="speeds", speeds=SPEEDS, note="tokens per second"))
    assert path.read_text(encoding="utf-8").count('class="chart"') == 1  # without traces and costs
    with pytest.raises(ConfigError, match=r"\.svg or \.html"):
        check_report(tmp_path / "report.png")
    with pytest.raises(ConfigError, match="--report"):
        check_report(tmp_path / "none" / name)


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
    card = "getComputedStyle(document.querySelector('.chart path')).fill"
    lightness = f"return {card}.match(/\\d+/g).reduce((sum, part) => sum + +part, 0)"
    assert (browser.js(lightness) < 300) == dark
    assert not serious(browser)


def test_a_method_whose_texts_accept_nothing_has_no_bars(tmp_path, recwarn):
    nothing = [replace(Maker(4).trace(3), rounds=[replace(made, path=[]) for made in Maker(4).trace(3).rounds])]
    found = charts(replace(MEASURED, traces={0.0: TRACES[0.0], 1.0: nothing}), 360)
    assert len(found) == 4
    assert all(any("temperature 0" in text for text in words(svg)) for svg in found[:3])
    assert not any("temperature 1" in text for svg in found[1:3] for text in words(svg))
    assert not [warning for warning in recwarn if "layout" in str(warning.message)]
