"""The page of the adaptive tree holds its constants as they are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from draftwood.draft.adaptive.settings import AdaptiveSettings, constants

PAGE = Path(__file__).parents[2] / "docs" / "adaptive.md"


def table() -> list[str]:
    """The table of constants, line by line."""
    settings = AdaptiveSettings()
    lines = ["| constant | default | unit | meaning | set by |", "|---|---|---|---|---|"]
    for name, of in constants().items():
        lines.append(f"| `{name}` | {getattr(settings, name)} | {of.unit} | {of.meaning} | {of.set_by} |")
    return lines


def test_the_page_holds_every_constant():
    page = PAGE.read_text()
    block = page.split("<!-- constants -->\n")[1].split("<!-- /constants -->")[0]
    assert block.splitlines() == table()


def test_every_constant_says_what_it_is():
    assert [one.name for one in fields(AdaptiveSettings)] == list(constants())
    assert all(all(of) for of in constants().values())
