"""An SVG under construction. Texts are measured, colours are variables, nothing is written as markup by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from html import escape
from importlib.resources import files
from typing import Final, TypeAlias, final

from draftwood.trace.labels import is_plain, mono_width, shorten, visible

SVG: Final = "http://www.w3.org/2000/svg"
SIZE: Final = 12.0  # of token texts and numbers
SMALL: Final = 11.0
PILL: Final = 22.0  # height of a token
Point = tuple[float, float]
Group: TypeAlias = list["str | Group"]
"""A group's first tag without its end, and what is inside; strings are markup."""
_IN_ATTRIBUTES: Final = str.maketrans({'"': "&quot;", "\r": "&#13;", "\n": "&#10;", "\t": "&#09;"})
_text = partial(escape, quote=False)


@final
class Canvas:
    """A figure; coordinates are pixels at natural size.

    Args:
        name: the figure's title.
        description: one sentence for those who do not see it.
        prefix: of the ids inside, so that many figures can stand in one page.
    """

    def __init__(self, name: str, description: str, prefix: str) -> None:
        self._prefix, self._name, self._description = prefix, name, description
        self._head = f"{prefix}-head"
        self._lines: Group = ["<g"]
        self._shapes: Group = ["<g"]

    def group(self, kind: str, title: str = "", *, data: Mapping[str, object] | None = None) -> Group:
        """A group of shapes; ``title`` appears where the pointer rests, ``data`` becomes ``data-`` attributes."""
        tag = f'<g class="{kind}"'
        for key, value in (data or {}).items():
            if value is not None:
                words = f"{value:.6g}" if isinstance(value, float) else visible(str(value), spaces=False)
                tag += f' data-{key}="{_text(words).translate(_IN_ATTRIBUTES)}"'
        group: Group = [tag]
        if title:
            words = "\n".join([visible(line, spaces=False) for line in title.split("\n")])
            group.append(f"<title>{_text(words)}</title>")
        self._shapes.append(group)
        return group

    def rect(self, x: float, y: float, width: float, height: float, kind: str, *, within: Group, radius: float = 0) -> None:
        """A box."""
        rounded = f' rx="{radius:.1f}"' if radius else ""
        within.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{rounded} />')

    def text(
        self, x: float, y: float, words: str, kind: str = "code", *, within: Group | None = None, anchor: str = "start",
        size: float = SIZE,
    ) -> None:  # fmt: skip
        """One line; ``y`` is its base line. A width that depends on the reader's fonts is forced to the measured one."""
        more = "" if anchor == "start" else f' text-anchor="{anchor}"'
        if size != SIZE:
            more += f' font-size="{size:g}"'
        if not is_plain(words):
            more += f' textLength="{mono_width(words, size):.1f}" lengthAdjust="spacingAndGlyphs"'
        end = f">{_text(words)}</text>" if words else " />"
        (self._shapes if within is None else within).append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{more}{end}')

    def pill(
        self, x: float, y: float, width: float, label: str, words: str, kind: str, *, within: Group, size: float = SIZE
    ) -> None:
        """A rounded box around the height ``y`` with a label, and a text that is cut where it does not fit."""
        self.rect(x, y - PILL / 2, width, PILL, f"pill {kind}", within=within, radius=PILL / 2)
        self.text(x + 8, y + 4, label, "quiet", within=within, size=SMALL)
        start = 8 + mono_width(label, SMALL) + 6
        self.text(x + start, y + 4, shorten(words, width - start - 6, size), within=within, size=size)

    def line(self, points: Sequence[Point], kind: str = "line", *, arrow: bool = False) -> None:
        """A line through points, behind all shapes."""
        path = " L".join([f"{x:.1f} {y:.1f}" for x, y in points])
        head = f' marker-end="url(#{self._head})"' if arrow else ""
        self._lines.append(f'<path class="{kind}" d="M{path}"{head} />')

    def curve(self, start: Point, end: Point, kind: str = "line") -> None:
        """A line that leaves and arrives horizontally, behind all shapes."""
        (x, y), (to_x, to_y) = start, end
        middle = (x + to_x) / 2
        path = f"M{x:.1f} {y:.1f} C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        self._lines.append(f'<path class="{kind}" d="{path}" />')

    def finish(self, width: float, height: float) -> str:
        """The file."""
        name, words = f"{self._prefix}-name", f"{self._prefix}-text"
        return "".join(
            [
                f'<svg xmlns="{SVG}" class="dw-figure" role="img" aria-labelledby="{name} {words}" '
                f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">',
                f'<title id="{name}">{_text(visible(self._name, spaces=False))}</title>',
                f'<desc id="{words}">{_text(visible(self._description, spaces=False))}</desc>',
                f"<style>{_text(style())}</style>",
                f'<defs><marker id="{self._head}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                'orient="auto"><path d="M0 0 L8 4 L0 8 Z" class="head" /></marker></defs>',
                f'<rect class="card" width="{width - 1:.1f}" height="{height - 1:.1f}" x="0.5" y="0.5" rx="10.0" />',
                *_markup(self._lines),
                *_markup(self._shapes),
                "</svg>\n",
            ]
        )


def _markup(group: Group) -> Iterator[str]:
    """A group and what is inside, in order."""
    tag, *inside = group
    assert isinstance(tag, str)
    if not inside:
        yield tag + " />"
        return
    yield tag + ">"
    for part in inside:
        if isinstance(part, str):
            yield part
        else:
            yield from _markup(part)
    yield "</g>"


@cache
def style() -> str:
    """The style sheet of all figures."""
    return files("draftwood.trace.figures").joinpath("figure.css").read_text(encoding="utf-8")
