"""The figures and tables of the documentation are those that the round and the stored results give."""

import re
import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path

import pytest

import draftwood
from draftwood.trace.figures import draw_round
from scripts.pages import one_round, speeds
from scripts.pages.__main__ import TABLES, with_tables
from tests.trace.test_figures import boxes, overlapping

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg, kind):
    return re.findall(rf'<text [^>]*class="{kind}"[^>]*>([^<]*)<', svg)


def assert_same_drawing(stored, drawn):
    """Numbers may differ by one in the last digit: a half is rounded up on one processor and down on another."""
    number = re.compile(r"(?<![\w#])-?\d+\.\d+")
    assert number.sub("", stored) == number.sub("", drawn), "run python -m scripts.pages"
    for one, other in zip(number.findall(stored), number.findall(drawn), strict=True):
        digits = min(len(found.split(".")[1]) for found in (one, other))
        assert abs(float(one) - float(other)) < 1.01 * 10**-digits, "run python -m scripts.pages"


def test_the_drawn_round_is_one_that_the_bundled_pair_makes():
    trace = one_round.recorded(draftwood.load(options={"backend": "torch"}))
    svg, made = (IMAGES / "one-round.svg").read_text(encoding="utf-8"), trace.rounds[one_round.ROUND]
    assert svg == one_round.draw(trace), "run python -m scripts.pages"
    words, out = (
        [trace.texts[token].strip() for token in some] for some in ([one.token for one in made.nodes], made.tokens)
    )
    assert texts(svg, "code") == [*words, *words, *words, *out]
    kept = [one.token for one in made.nodes if one.verdict == "accepted"]
    assert made.tokens[:-1] == kept
    rejected = [one for one in made.nodes if one.verdict == "rejected"]
    assert [svg.count(sign) for sign in ("✓", "✗")] == [len(kept), len(rejected)]
    assert rejected  # and its next sibling was tried
    for node in rejected:
        assert any(other.parent == node.parent and other.verdict == "accepted" for other in made.nodes)
        assert node.target_prob < node.draft_prob
    assert_same_drawing((IMAGES / "recursive-round.svg").read_text(encoding="utf-8"), draw_round(trace, one_round.ROUND))


def test_the_chart_and_the_tables_are_those_of_the_stored_runs():
    assert (IMAGES / "speeds.svg").read_text(encoding="utf-8") == speeds.draw(ROOT), "run python -m scripts.pages"
    for name, machines in TABLES.items():
        page = (ROOT / name).read_text(encoding="utf-8")
        assert with_tables(page, machines) == page, "run python -m scripts.pages"


def chart():
    return ET.fromstring(speeds.draw(ROOT))


def test_a_bar_is_as_long_as_its_value():
    bars = {}
    for group in chart().iter(f"{SVG}g"):
        if group.get("class") == "bar":
            [rect], [_, value] = group.findall(f"{SVG}rect"), group.findall(f"{SVG}text")
            bars.setdefault(float(value.text), []).append(float(rect.get("width")))
    [line, other] = [path.get("d") for path in chart().iter(f"{SVG}path") if path.get("class") == "dotted"]
    begin, rest = (float(re.search(r"M([\d.]+)", one)[1]) for one in (line, other))
    lefts = {float(rect.get("x")) for rect in chart().iter(f"{SVG}rect") if rect.get("height") == "17.0"}
    one = begin - min(lefts)
    assert len(bars) > 10
    assert (one > 10, len(lefts), rest - max(lefts)) == (True, 2, one)  # the lines stand at 1
    for value, widths in bars.items():
        assert widths == pytest.approx([value * one] * len(widths), abs=0.06)


def test_no_text_of_the_chart_overlaps_another_or_leaves_it():
    found, (right, bottom) = boxes(speeds.draw(ROOT)), (float(chart().get(name)) for name in ("width", "height"))
    assert len(found) > 20
    assert not overlapping(found)
    assert not [box for box in found if box[0] < 0 or box[1] < 0 or box[2] > right or box[3] > bottom]


@pytest.mark.parametrize("machine", speeds.RUNS)
def test_a_table_holds_the_figures_of_the_stored_run(machine):
    stored = (ROOT / speeds.RUNS[machine]).read_text(encoding="utf-8")
    cells = speeds.measured(ROOT, machine)
    table = speeds.short_table(ROOT, machine)
    assert set(cells) == set(product(speeds.systems_of(machine), speeds.TEMPERATURES))
    for (system, _), (speed, ratio) in cells.items():
        row = rf"^\| {re.escape(system)}(?: \d+)? \|.*\| {re.escape(speed)} \| {re.escape(ratio)} \|"
        assert re.search(row, stored, re.MULTILINE)
        assert f" {speed.split()[0]} | {ratio.split()[0]} |" in table


@pytest.mark.parametrize("name", ["one-round.svg", "recursive-round.svg", "speeds.svg"])
def test_a_figure_needs_no_network_and_knows_dark_mode(name):
    svg = (IMAGES / name).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"]+", svg)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "prefers-color-scheme: dark" in svg
    assert "@import" not in svg
    assert "<title" in svg
