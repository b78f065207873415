"""``draftwood info``. No model is loaded."""

from __future__ import annotations

import json

import click


@click.command(name="info")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")
def command(as_json: bool) -> None:
    """Show versions, the device, the profiles of this machine, and which verifiers are exact for which method."""
    from draftwood.cli.facts import gather, lines

    facts = gather()
    click.echo(json.dumps(facts, ensure_ascii=False) if as_json else "\n".join(lines(facts)))
