"""How far a benchmark is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial


@contextmanager
def steps(what: str, total: int) -> Iterator[Callable[[], object]]:
    """A bar on stderr, so that stdout stays free for results; gives a function to be called after every step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    shown = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Drawn between two measurements: a thread that redraws on its own would compete with the models.
    with Progress(*shown, console=Console(stderr=True), auto_refresh=False) as progress:
        yield partial(progress.update, progress.add_task(what, total=total), advance=1, refresh=True)
