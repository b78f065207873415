"""An SVG under construction. Texts are measured, colours are variables, nothing is written as markup by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, final

from draftwood.trace.labels import is_plain, mono_width, visible

SVG: Final = "http://www.w3.org/2000/svg"
ET.register_namespace("", SVG)
SIZE: Final = 12.0  # of token texts and numbers
SMALL: Final = 11.0
Point = tuple[float, float]


@final
class Canvas:
    """A figure; coordinates are pixels at natural size.

    Args:
        name: the figure's title.
        description: one sentence for those who do not see it.
        prefix: of the ids inside, so that many figures can stand in one page.
    """

    def __init__(self, name: str, description: str, prefix: str) -> None:
        self.root = ET.Element("svg", {"xmlns": SVG, "class": "dw-figure", "role": "img"})
        self.root.set("aria-labelledby", f"{prefix}-name {prefix}-text")
        for tag, words in (("title", name), ("desc", description)):
            child = ET.SubElement(self.root, tag, {"id": f"{prefix}-{'name' if tag == 'title' else 'text'}"})
            child.text = visible(words, spaces=False)
        ET.SubElement(self.root, "style").text = style()
        self._head = f"{prefix}-head"
        marker = ET.SubElement(ET.SubElement(self.root, "defs"), "marker", {"id": self._head, "viewBox": "0 0 8 8"})
        for key, value in {"refX": "7", "refY": "4", "markerWidth": "7", "markerHeight": "7", "orient": "auto"}.items():
            marker.set(key, value)
        ET.SubElement(marker, "path", {"d": "M0 0 L8 4 L0 8 Z", "class": "head"})
        self.card = ET.SubElement(self.root, "rect", {"class": "card"})
        self.lines = ET.SubElement(self.root, "g")
        self.shapes = ET.SubElement(self.root, "g")

    def group(
        self, kind: str, title: str = "", *, data: Mapping[str, object] | None = None, within: ET.Element | None = None
    ) -> ET.Element:
        """A group of shapes; ``title`` appears where the pointer rests, ``data`` becomes ``data-`` attributes."""
        group = ET.SubElement(self.shapes if within is None else within, "g", {"class": kind})
        for key, value in (data or {}).items():
            if value is not None:
                words = f"{value:.6g}" if isinstance(value, float) else str(value)
                group.set("data-" + key, visible(words, spaces=False))
        if title:
            ET.SubElement(group, "title").text = "\n".join(visible(line, spaces=False) for line in title.split("\n"))
        return group

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, *, within: ET.Element, radius: float = 0
    ) -> None:
        """A box."""
        box = ET.SubElement(within, "rect", {"class": kind})
        for key, value in {"x": x, "y": y, "width": width, "height": height, "rx": radius}.items():
            if value or key != "rx":
                box.set(key, f"{value:.1f}")

    def text(
        self, x: float, y: float, words: str, kind: str = "code", *, within: ET.Element | None = None, anchor: str = "start",
        size: float = SIZE,
    ) -> None:  # fmt: skip
        """One line; ``y`` is its base line. A width that depends on the reader's fonts is forced to the measured one."""
        line = ET.SubElement(self.shapes if within is None else within, "text", {"class": kind})
        for key, value in {"x": x, "y": y}.items():
            line.set(key, f"{value:.1f}")
        if anchor != "start":
            line.set("text-anchor", anchor)
        if size != SIZE:
            line.set("font-size", f"{size:g}")
        if not is_plain(words):
            line.set("textLength", f"{mono_width(words, size):.1f}")
            line.set("lengthAdjust", "spacingAndGlyphs")
        line.text = words

    def line(self, points: Sequence[Point], kind: str = "line", *, arrow: bool = False) -> None:
        """A line through points, behind all shapes."""
        path = ET.SubElement(self.lines, "path", {"class": kind})
        path.set("d", "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points))
        if arrow:
            path.set("marker-end", f"url(#{self._head})")

    def curve(self, start: Point, end: Point, kind: str = "line") -> None:
        """A line that leaves and arrives horizontally, behind all shapes."""
        (x, y), (to_x, to_y) = start, end
        middle = (x + to_x) / 2
        path = ET.SubElement(self.lines, "path", {"class": kind})
        path.set("d", f"M{x:.1f} {y:.1f} C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}")

    def finish(self, width: float, height: float) -> str:
        """The file."""
        for key, value in {"width": width - 1, "height": height - 1, "x": 0.5, "y": 0.5, "rx": 10.0}.items():
            self.card.set(key, f"{value:.1f}")
        self.root.set("viewBox", f"0 0 {width:.0f} {height:.0f}")
        self.root.set("width", f"{width:.0f}")
        self.root.set("height", f"{height:.0f}")
        return ET.tostring(self.root, encoding="unicode") + "\n"


@cache
def style() -> str:
    """The style sheet of all figures."""
    return files("draftwood.trace.figures").joinpath("figure.css").read_text(encoding="utf-8")
