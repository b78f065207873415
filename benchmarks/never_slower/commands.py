"""The command; nothing heavy is imported before it runs."""

from __future__ import annotations

from typing import Any

import click

from benchmarks.never_slower.config import NeverSlowerConfig
from draftwood.cli.options import dataclass_options
from draftwood.cli.progress import steps


@click.command(name="never-slower")
@dataclass_options(NeverSlowerConfig)
def command(**options: Any) -> None:
    """Compare auto with plain decoding, text by text: with the pair's draft, without one, and with a useless one.

    Asked by docs/speed.md.
    """
    from benchmarks.never_slower.run import markdown, run
    from benchmarks.record import save

    config = NeverSlowerConfig(**options)
    config.output.mkdir(parents=True, exist_ok=True)
    document = run(config, steps)
    report = markdown(document)
    save(config.output, "never-slower", document, report)
    click.echo(report)
