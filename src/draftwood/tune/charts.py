"""Charts of measured figures as SVG: bars for speeds and counts, points and a line for costs. In light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from draftwood.trace.figures.canvas import SMALL, Canvas, Point, step_of
from draftwood.trace.labels import mono_width, sans_width, shorten

_EDGE, _GAP, _BAR = 16.0, 28.0, 14.0  # margin, space between panels, height of a bar
_LINE: Final = 16.0  # from one line of text to the next
_TWO_COLUMNS: Final = 700.0  # from this width on, panels stand side by side
_LABELS: Final = 0.5  # of a panel, at most, for labels left of their bars; longer ones stand above


@final
@dataclass(frozen=True, kw_only=True)
class Bar:
    """One measured value.

    Attributes:
        label: what was measured.
        value: the bar's length, in the chart's unit; 0 or more.
        shown: the number as it is written.
        low, high: the extremes; None without.
        marked: drawn in the colour for what matters.
    """

    label: str
    value: float
    shown: str
    low: float | None = None
    high: float | None = None
    marked: bool = False


def draw_bars(
    name: str, panels: Mapping[str, Sequence[Bar]], *, note: str, width: int = 360, one: float | None = None,
    prefix: str = "bars",
) -> str:  # fmt: skip
    """A chart of bars.

    Args:
        name: the chart's title.
        panels: title -> bars, from top to bottom; all panels have the same scale.
        note: below the chart: the unit, the meaning of marks, the source.
        width: in pixels. Two panels stand side by side from 700 on.
        one: a value at which a line is drawn through every panel; None without.
        prefix: of the ids inside.
    """
    canvas = Canvas(name, note, prefix)
    columns = min(2, len(panels)) if width >= _TWO_COLUMNS else 1
    each = (width - 2 * _EDGE - (columns - 1) * _GAP) / max(1, columns)
    y = _paragraph(canvas, name, _EDGE, 28.0, width - 2 * _EDGE, "head-line")
    reach = max((most for bars in panels.values() for bar in bars if (most := _most(bar)) > 0), default=1.0)
    titles = list(panels)
    for start in range(0, len(titles), columns):
        below = y
        for column, title in enumerate(titles[start : start + columns]):
            left = _EDGE + column * (each + _GAP)
            below = max(below, _panel(canvas, title, panels[title], (left, y), each, reach, one))
        y = below + 14
    y = _paragraph(canvas, note, _EDGE, y + 8, width - 2 * _EDGE, "note")
    return canvas.finish(width, y)


def _most(bar: Bar) -> float:
    return max(bar.value, bar.high or 0.0)


def _panel(
    canvas: Canvas, title: str, bars: Sequence[Bar], corner: Point, width: float, reach: float, one: float | None
) -> float:
    """The bars of one panel; returns its lower edge."""
    left, y = corner
    y = _paragraph(canvas, title, left, y + 4, width, "note") + 4
    labels = max((mono_width(bar.label, SMALL) for bar in bars), default=0.0) + 8
    above = labels > _LABELS * width
    values = max((mono_width(bar.shown, SMALL) for bar in bars), default=0.0) + 8
    start = left if above else left + labels
    scale, top = (left + width - values - start) / reach, y - 8
    for bar in bars:
        group = canvas.group("bar", f"{bar.label}: {bar.shown}", data={
            "label": bar.label, "value": bar.value, "low": bar.low, "high": bar.high,
        })  # fmt: skip
        if above:
            canvas.text(left, y + 2, shorten(bar.label, width, SMALL), within=group, size=SMALL)
            y += 7
        else:
            canvas.text(start - 8, y + 2, bar.label, within=group, anchor="end", size=SMALL)
        middle = y + 6 if above else y - 2
        kind = "c3" if bar.marked else "c5"
        canvas.rect(start, middle - _BAR / 2, max(0.5, bar.value * scale), _BAR, kind, within=group, radius=2)
        if bar.low is not None and bar.high is not None:
            canvas.rect(start + bar.low * scale, middle - 1, (bar.high - bar.low) * scale, 2, "head", within=group)
        canvas.text(start + _most(bar) * scale + 6, middle + 4, bar.shown, within=group, size=SMALL)
        y = middle + (27 if above else 24)
    if one is not None:
        canvas.line([(start + one * scale, top), (start + one * scale, y - 12)], "dotted")
    return y - 8


def draw_costs(
    name: str, points: Sequence[tuple[int, float]], estimate: Sequence[tuple[int, float]], *, note: str, width: int = 360,
    prefix: str = "costs",
) -> str:  # fmt: skip
    """Milliseconds against nodes: measured ones as points, expected ones as a line.

    Args:
        name: the chart's title.
        points: nodes and milliseconds of each forward.
        estimate: the same of the line, by rising nodes; may be empty.
        note: below the chart.
        width: in pixels.
        prefix: of the ids inside.
    """
    canvas = Canvas(name, note, prefix)
    y = _paragraph(canvas, name, _EDGE, 28.0, width - 2 * _EDGE, "head-line")
    canvas.text(_EDGE, y + 2, "milliseconds", "note", size=SMALL)
    both = [*points, *estimate]
    nodes, most = max((n for n, _ in both), default=1), max((ms for _, ms in both), default=1.0) or 1.0
    left, top, wide, high = _EDGE + 44, y + 16, width - 2 * _EDGE - 60, 0.6 * width
    bottom = top + high

    def at(node: int | float, ms: int | float) -> Point:
        return left + wide * node / nodes, bottom - high * ms / most

    for value in _ticks(most, 6.0):
        canvas.line([at(0, value), at(nodes, value)], "faint")
        canvas.text(left - 6, at(0, value)[1] + 4, f"{value:g}", "quiet", anchor="end", size=SMALL)
    for value in _ticks(float(nodes), max(2.0, wide / 60), minimum=1.0):
        x, _ = at(value, 0.0)
        canvas.line([(x, bottom), (x, bottom + 4)])
        canvas.text(x, bottom + 17, f"{value:g}", "quiet", anchor="middle", size=SMALL)
    if len(estimate) > 1:
        canvas.line([at(*point) for point in estimate], "lost")
    for node, ms in points:
        x, height = at(node, ms)
        group = canvas.group("point", f"{node} nodes: {ms:.1f} ms", data={"nodes": node, "ms": ms})
        canvas.rect(x - 3, height - 3, 6, 6, "c1", within=group, radius=3)
    y = _paragraph(canvas, "nodes, the root included. " + note, _EDGE, bottom + 38, width - 2 * _EDGE, "note")
    return canvas.finish(width, y)


def _ticks(total: float, most: float, *, minimum: float = 0.0) -> list[float]:
    """Round numbers from 0 to ``total``, about ``most`` of them at the most."""
    step = max(minimum, step_of(total, most))
    return [number * step for number in range(int(total / step) + 1)]


def _paragraph(canvas: Canvas, words: str, x: float, y: float, width: float, kind: str) -> float:
    """Text in as many lines as it needs; returns where the next line would stand."""
    lines = [""]
    for word in words.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and sans_width(longer, 12.0) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    for line in lines:
        canvas.text(x, y, line, kind)
        y += _LINE
    return y
