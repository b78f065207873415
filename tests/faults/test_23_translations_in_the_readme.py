"""The README shows what the bundled pair really makes of German sentences, the bad example among them."""

from __future__ import annotations

import re
from pathlib import Path

import draftwood

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_every_translation_in_the_readme_is_that_of_the_bundled_pair() -> None:
    table = README.split("| German | `draftwood translate` |\n|---|---|\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert len(rows) >= 4
    translator = draftwood.load_translator(options={"backend": "torch"})
    assert [(german, translator.translate(german).text) for german, _ in rows] == rows
