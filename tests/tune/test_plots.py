"""Reports: what is drawn is what was measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from matplotlib.text import Text

from draftwood.core.errors import ConfigError
from draftwood.tune import charts as drawn
from draftwood.tune.charts import Bar, draw_bars
from draftwood.tune.plots import accepted_by, charts, check_report, write_report
from tests.trace.builder import Maker

TRACES = {0.0: [Maker(1).trace(6)], 1.0: [Maker(2).trace(5), Maker(3).trace(4)]}


def bar(label, value, **more):
    return Bar(label=label, value=value, shown=f"{value:.1f}", **more)


BARS = {
    "temperature 0": [bar("plain decoding", 10.0, low=9.0, high=11.0), bar("auto", 20.0, low=18.0, high=21.0, marked=True)],
    "temperature 1": [bar("a method of a name that is much longer than its bar", 8.0), bar("<script>", 0.0)],
}
SPEEDS = {0.0: BARS["temperature 0"], 1.0: BARS["temperature 1"]}
NOTE = "tokens per second"


def test_accepted_tokens_are_counted_by_depth_and_rank():
    rounds = [made for trace in TRACES[1.0] for made in trace.rounds]
    for key, first in (("depth", 0), ("rank", 1)):
        found = accepted_by(TRACES[1.0], key)
        for value, mean in found.items():
            kept = [n for made in rounds for n in made.path if getattr(made.nodes[n], key) + first == value]
            assert mean == pytest.approx(len(kept) / len(rounds))
        assert sum(found.values()) == pytest.approx(sum(len(made.path) for made in rounds) / len(rounds))


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


@pytest.mark.parametrize("width", [360, 520, 1056])
def test_no_text_of_a_chart_overlaps_another_or_leaves_it(width, monkeypatch):
    figures = []
    monkeypatch.setattr(drawn, "_svg", lambda figure, name: figures.append(figure) or '<svg height="1">')
    charts(SPEEDS, TRACES, note=NOTE, width=width)
    assert len(figures) == 3
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


def test_a_report_is_written(tmp_path):
    path = tmp_path / "report.svg"
    check_report(path)
    write_report(path, SPEEDS, TRACES, note=NOTE)
    text = path.read_text(encoding="utf-8")
    assert ET.fromstring(text).tag.endswith("svg")
    assert text.count('class="chart"') == 3
    assert "<script>" not in text
    write_report(path, SPEEDS, {}, note=NOTE)
    assert path.read_text(encoding="utf-8").count('class="chart"') == 1  # without traces
    with pytest.raises(ConfigError, match=r"ends in \.svg"):
        check_report(tmp_path / "report.png")
    with pytest.raises(ConfigError, match="--report"):
        check_report(tmp_path / "none" / "report.svg")


@pytest.mark.parametrize("dark", [False, True])
def test_in_chromium_a_report_is_light_or_dark(browser, tmp_path, dark):
    write_report(tmp_path / "report.svg", SPEEDS, TRACES, note=NOTE)
    browser.size(1400, dark=dark)
    browser.open(tmp_path / "report.svg")
    assert len(browser.js("return [...document.querySelectorAll('.chart')]")) == 3
    card = "getComputedStyle(document.querySelector('.chart path')).fill"
    lightness = f"return {card}.match(/\\d+/g).reduce((sum, part) => sum + +part, 0)"
    assert (browser.js(lightness) < 300) == dark


def test_a_method_whose_texts_accept_nothing_has_no_bars(tmp_path, recwarn):
    nothing = [replace(Maker(4).trace(3), rounds=[replace(made, path=[]) for made in Maker(4).trace(3).rounds])]
    found = charts(SPEEDS, {0.0: TRACES[0.0], 1.0: nothing}, note=NOTE, width=360)
    assert len(found) == 3
    assert all(any("temperature 0" in text for text in words(svg)) for svg in found)
    assert not any("temperature 1" in text for svg in found[1:3] for text in words(svg))
    assert not [warning for warning in recwarn if "layout" in str(warning.message)]
