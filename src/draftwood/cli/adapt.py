"""``draftwood adapt``."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from draftwood.cli.options import dataclass_options, pick
from draftwood.loading.names import check_model
from draftwood.train.config import AdaptConfig


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """What ends a process ends it as Ctrl-C does, which removes the temporary folder."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for name in names if signal.getsignal(number := getattr(signal, name)) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@click.command(name="adapt")
@dataclass_options(AdaptConfig)
@click.option("--remove", is_flag=True, help="Remove what was learnt: the drafter of this package is used again.")
def command(remove: bool, **options: Any) -> None:
    """Train the drafter of a model further on your own texts, and keep it if it drafts better there.

    Texts are files of plain text, or .jsonl files with "messages" or "text" in each line. The texts and the drafter stay on
    this machine. The drafter is then used wherever the model is loaded with its own drafter. What the model writes keeps its
    distribution: only the speed changes.
    """
    config = pick(AdaptConfig, options)
    check_model(config.target)

    from draftwood.loading.models import quiet_loading
    from draftwood.train import adapt

    if remove:
        found = adapt.remove(config.target)
        click.echo("It is removed: the drafter of this package is used." if found else "There was nothing to remove.")
        return
    quiet_loading()
    with _ended_in_order():
        result = adapt.adapt(config)
    for name, (before, after) in (("your texts", result.texts), ("chats of the model", result.chats)):
        click.echo(f"Tokens of a pass on held-out {name}: {before:.3f} before, {after:.3f} now.")
    if result.folder is None:
        click.echo("That is not better by 2 %, or loses more than 0.03 on chats: nothing was changed.")
    else:
        click.echo(f"The drafter is in {result.folder}, and is used from now on; --remove takes it back.")
