"""Writes every figure and every table that is made from a live round, stored results or the registries."""

from __future__ import annotations

from pathlib import Path

import draftwood
from draftwood.trace.figures import draw_round
from scripts.pages import methods, one_round, published_round, results, speeds

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- table: python -m scripts.pages -->\n", "<!-- end of table -->"


def main() -> None:
    images = ROOT / "docs" / "images"
    pair = draftwood.load(options={"backend": "torch"})
    (images / "one-round.svg").write_text(one_round.draw(one_round.shown(pair)), encoding="utf-8")
    (images / "published-round.svg").write_text(draw_round(published_round.recorded(), 0), encoding="utf-8")
    (images / "speeds.svg").write_text(speeds.draw(ROOT), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), speeds.readme_table(ROOT)), encoding="utf-8")
    for name, page in results.pages(ROOT).items():
        (ROOT / "docs" / "results" / name).write_text(page, encoding="utf-8")
    methods.PAGE.write_text(methods.current(), encoding="utf-8")


def with_table(page: str, table: str) -> str:
    """The page with this table between its two marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + table + "\n\n" + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    main()
