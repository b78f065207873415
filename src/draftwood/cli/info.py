"""``draftwood info``. No model is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from draftwood.cli.console import write_line


@click.command(name="info")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")
def command(as_json: bool) -> None:
    """Show versions, the device, the profiles of this machine, which verifiers are exact for which method, and what
    --method auto takes without a profile (auto)."""
    from draftwood.cli.facts import gather

    facts = gather()
    write_line(json.dumps(facts, ensure_ascii=False) if as_json else "\n".join(outline(facts)))


def outline(facts: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Nested facts as lines of text; None is ``-``, and what is empty is ``none``."""
    for name, value in facts.items():
        head = f"{indent}{name}:"
        if isinstance(value, Mapping) and value:
            yield head
            yield from outline(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield head
            for one in value:
                first, *rest = outline(one, indent + "    ")
                yield f"{indent}  - {first.strip()}"
                yield from rest
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else value
            yield f"{head} {'none' if shown in ('', {}) else shown}"
