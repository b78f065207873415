"""A small SVG: one card, readable in light and in dark mode, with the fonts of the reader's machine."""

from __future__ import annotations

from html import escape

# Wong's colours for colour-blind readers, lighter where the card is dark.
STYLE = """\
svg { font: 14px ui-sans-serif, system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
.card { fill: #ffffff; stroke: #d0d7de }
text { fill: #1f2328 }
.code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 13px }
.small { font-size: 12px }
.quiet { fill: #59636e }
.title { font-weight: 600; font-size: 15px }
.middle { text-anchor: middle }
.end { text-anchor: end }
.line { fill: none; stroke: #8c959f; stroke-width: 1.5 }
.pill { fill: #f6f8fa; stroke: #8c959f }
.good { fill: #d3f0e3; stroke: #00795b; stroke-width: 2 }
.path { stroke: #00795b; stroke-width: 3 }
.bad { fill: #fbe3d3; stroke: #c04f00 }
.own { fill: #dbeaf9; stroke: #0060a0; stroke-width: 2 }
.yes { fill: #00795b; font-weight: 700 }
.no { fill: #c04f00; font-weight: 700 }
.box { fill: none; stroke: #0060a0; stroke-width: 1.5; stroke-dasharray: 5 4 }
.head { fill: #59636e }
@media (prefers-color-scheme: dark) {
  .card { fill: #161b22; stroke: #30363d }
  text { fill: #e6edf3 }
  .quiet, .head { fill: #9da7b1 }
  .pill { fill: #21262d; stroke: #7d8590 }
  .good { fill: #0f3b2e; stroke: #3fc79a }
  .path { stroke: #3fc79a }
  .bad { fill: #47260f; stroke: #f2955a }
  .own { fill: #10304d; stroke: #6cb6ff }
  .box { stroke: #6cb6ff }
  .yes { fill: #3fc79a }
  .no { fill: #f2955a }
}"""


def text(x: float, y: float, words: str, classes: str = "") -> str:
    """One line of text; ``y`` is its base line."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}" xml:space="preserve">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, classes: str, radius: float = 6) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:.1f}" class="{classes}"/>'


def line(points: list[tuple[float, float]], classes: str = "line", *, arrow: bool = False) -> str:
    """A line through points, with a head at its end."""
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    end = ' marker-end="url(#head)"' if arrow else ""
    return f'<path d="M{path}" class="{classes}"{end}/>'


def picture(width: int, height: int, name: str, description: str, parts: list[str]) -> str:
    """The whole file."""
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 Z" class="head"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img" aria-labelledby="name description">',
            f'<title id="name">{escape(name)}</title>',
            f'<desc id="description">{escape(description)}</desc>',
            f"<style>\n{STYLE}\n</style>",
            f"<defs>{head}</defs>",
            box(0.5, 0.5, width - 1, height - 1, "card", 10),
            *parts,
            "</svg>\n",
        ]
    )
