"""The command; nothing heavy is imported before it runs."""

from __future__ import annotations

from typing import Any

import click

from benchmarks.exact_chats.config import ExactChatsConfig
from draftwood.cli.options import dataclass_options


@click.command(name="exact-chats")
@dataclass_options(ExactChatsConfig)
def command(**options: Any) -> None:
    """Compare greedy chats with transformers' generate, token by token, and test sampled ones against the target's
    distribution."""
    from benchmarks.exact_chats.report import markdown
    from benchmarks.exact_chats.run import NAME, run
    from benchmarks.record import save

    config = ExactChatsConfig(**options)
    config.output.mkdir(parents=True, exist_ok=True)
    found = run(
        config,
        lambda document: save(config.output, NAME, document, markdown(document)),
        lambda line: click.echo(line, err=True),
    )
    click.echo(markdown(found))
    if not all(check["holds"] for check in found["checks"]):
        raise click.exceptions.Exit(1)
