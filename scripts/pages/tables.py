"""Tables of stored reports, read from their Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: the names of its columns and its rows, all as written."""

    columns: list[str]
    rows: list[list[str]]


def tables(report: str, heading: str) -> Iterator[tuple[str, Table]]:
    """Below every heading that begins so: the temperature that it stands under, and the first table."""
    for part in re.split(r"^## Temperature ", report, flags=re.MULTILINE)[1:]:
        temperature, rest = part.split("\n", 1)
        if heading in rest:
            yield temperature.strip(), first_table(rest.split(heading, 1)[1])


def first_table(report: str) -> Table:
    """The first table of a text."""
    found = re.search(r"(?:^\|.*\n)+", report, re.MULTILINE)
    if found is None:
        raise ValueError("the report holds no table where one was expected")
    lines = [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in found[0].splitlines()]
    return Table(columns=lines[0], rows=lines[2:])
