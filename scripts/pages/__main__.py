"""Writes every figure and every table that is made from a live round, stored results or the registries."""

from __future__ import annotations

from pathlib import Path

import draftwood
from draftwood.trace.figures import draw_round
from scripts.pages import methods, one_round, speeds

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- table: python -m scripts.pages -->\n", "<!-- end of table -->"
TABLES = {"README.md": [speeds.FIRST], "docs/speed.md": [name for name in speeds.RUNS if name != speeds.FIRST]}
"""Page -> the machines of its tables, in order."""


def main() -> None:
    images = ROOT / "docs" / "images"
    trace = one_round.recorded(draftwood.load(options={"backend": "torch"}))
    (images / "one-round.svg").write_text(one_round.draw(trace), encoding="utf-8")
    (images / "recursive-round.svg").write_text(draw_round(trace, one_round.ROUND), encoding="utf-8")
    (images / "speeds.svg").write_text(speeds.draw(ROOT), encoding="utf-8")
    for name, machines in TABLES.items():
        page = ROOT / name
        page.write_text(with_tables(page.read_text(encoding="utf-8"), machines), encoding="utf-8")
    methods.PAGE.write_text(methods.current(), encoding="utf-8")


def with_tables(page: str, machines: list[str]) -> str:
    """The page with the tables of these machines between its marks."""
    before, *parts = page.split(BEGIN)
    made = [
        f"\n{speeds.short_table(ROOT, machine)}\n\n{END}{part.split(END, 1)[1]}"
        for machine, part in zip(machines, parts, strict=True)
    ]
    return BEGIN.join([before, *made])


if __name__ == "__main__":
    main()
