"""Charts of bars as SVG, in light and dark. They need matplotlib (extra ``plots``)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final, final

from matplotlib import rc_context
from matplotlib.figure import Figure

_COLOURS: Final = {  # light, dark
    "card": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "quiet": ("#59636e", "#9198a1"),
    "bar": ("#8c959f", "#6e7681"),
    "own": ("#00795b", "#3fc79a"),
}
_SMALL: Final = 11  # pixels
_LETTER: Final = 6.2  # pixels: the mean width of a letter
_LINE: Final = 15  # pixels from one line of text to the next
_WIDTH: Final = 1056  # pixels of a chart, in which two panels share a line
_BAR: Final = 16  # pixels
_INKS: Final = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_IDS: Final = "figure|axes|patch|text|matplotlib|xtick|ytick|line2d|LineCollection"


@final
@dataclass(frozen=True, kw_only=True)
class Bar:
    """One measured value.

    Attributes:
        label: what was measured.
        value: the bar's length, in the chart's unit; 0 or more.
        shown: the number as it is written.
        marked: drawn in the colour for what matters.
    """

    label: str
    value: float
    shown: str
    marked: bool = False


def draw_bars(name: str, panels: Mapping[str, Sequence[Bar]], *, note: str, one: float) -> str:
    """A chart of bars.

    Args:
        name: the chart's title.
        panels: title -> bars, from top to bottom; all panels have the same scale.
        note: below the chart: the unit, the meaning of marks, the source.
        one: a value at which a line is drawn through every panel.
    """
    columns = min(2, len(panels))
    letters = int(0.4 * _WIDTH / columns / _LETTER)
    labels = {bar.label: "\n".join(wrap(bar.label, letters)) for bars in panels.values() for bar in bars}
    row = 10 + _LINE * max((label.count("\n") + 1 for label in labels.values()), default=1)
    heights = [max(len(bars) for bars in list(panels.values())[i : i + columns]) for i in range(0, len(panels), columns)]
    with _style(name):
        figure = _figure(name, note, sum(row * count + 34 for count in heights))
        axes = figure.subplots(len(heights), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
        reach = max(bar.value for bars in panels.values() for bar in bars)
        for panel, (title, bars) in zip(axes.flat, panels.items(), strict=False):
            _bars(panel, title, bars, labels, _BAR / row)
            panel.set_xlim(0.0, 1.3 * reach)
            panel.axvline(one, color=_COLOURS["ink"][0], linewidth=1, linestyle=":")
        for panel in list(axes.flat)[len(panels) :]:
            panel.set_axis_off()
        return _svg(figure, name)


def _bars(axes: Any, title: str, bars: Sequence[Bar], labels: Mapping[str, str], height: float) -> None:
    rows = range(len(bars))
    colours = [_COLOURS["own" if bar.marked else "bar"][0] for bar in bars]
    axes.barh(rows, [bar.value for bar in bars], height, color=colours, zorder=2)
    behind = {"facecolor": _COLOURS["card"][0], "linewidth": 0, "pad": 1}
    for at, bar in zip(rows, bars, strict=True):
        axes.annotate(
            bar.shown, (bar.value, at), (5, 0), textcoords="offset points", va="center", size=_SMALL, bbox=behind,
            parse_math=False,
        )  # fmt: skip
    axes.set_yticks(rows, [labels[bar.label] for bar in bars], size=_SMALL, parse_math=False)
    axes.set_title(title, size=_SMALL, loc="left", color=_COLOURS["quiet"][0], parse_math=False)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)


@contextmanager
def _style(name: str) -> Iterator[None]:
    """Text stays text, and an equal chart has equal ids."""
    inks = dict.fromkeys(_INKS, _COLOURS["ink"][0])
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "DejaVu Sans"} | inks):
        yield


def _figure(name: str, note: str, height: int) -> Any:
    """An empty figure with its title above and its note below; a pixel is a point."""
    letters = int((_WIDTH - 24) / _LETTER)
    title, words = "\n".join(wrap(name, int(letters / 1.3))), "\n".join(wrap(note, letters))
    height += _LINE * (title.count("\n") + words.count("\n") + 5)
    figure: Any = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained", facecolor=_COLOURS["card"][0])
    figure.get_layout_engine().set(w_pad=12 / 72, h_pad=8 / 72)
    figure.suptitle(title, x=12 / _WIDTH, ha="left", size=13, weight="bold", parse_math=False)
    figure.supxlabel(words, x=12 / _WIDTH, ha="left", size=_SMALL, color=_COLOURS["quiet"][0], parse_math=False)
    return figure


def _svg(figure: Any, name: str) -> str:
    """The figure as SVG whose colours follow light and dark mode; without ids that every chart has."""
    for axes in figure.axes:
        axes.set_facecolor("none")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Title": name})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(rf' id="(?:{_IDS})[^"]*"', "", text)
    text = re.sub(r'((?:width|height)="[\d.]+)pt"', r'\1"', text)
    for key, (light, _) in _COLOURS.items():
        text = text.replace(light, f"var(--{key})")
    light, dark = ("; ".join(f"--{key}: {pair[i]}" for key, pair in _COLOURS.items()) for i in (0, 1))
    style = f"<style>.chart {{ {light} }} @media (prefers-color-scheme: dark) {{ .chart {{ {dark} }} }}</style>"
    head, rest = text.split(">", 1)
    return f'{head} class="chart" role="img">{style}{rest}'
