"""The page of the adaptive tree holds its constants as they are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from draftwood.draft.adaptive.settings import AdaptiveSettings

PAGE = Path(__file__).parents[2] / "docs" / "adaptive.md"


def test_the_page_holds_every_constant():
    block = PAGE.read_text().split("<!-- constants -->\n")[1].split("<!-- /constants -->")[0]
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    assert head == ["constant", "default", "unit", "meaning", "set by"]
    assert [line[:2] for line in lines] == [[f"`{one.name}`", str(one.default)] for one in fields(AdaptiveSettings)]
    assert all(len(line) == len(head) and all(line) for line in lines)
