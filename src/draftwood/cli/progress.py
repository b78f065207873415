"""Progress bars on standard error."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial


@contextmanager
def note(text: str) -> Iterator[None]:
    """Show a note on standard error during a slow step, if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(text) if console.is_terminal else nullcontext():
        yield


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection: there is little garbage, and looking for it takes time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def loading_libraries() -> Iterator[None]:
    """A context in which PyTorch and what needs it are imported, with a note on a terminal."""
    with note("Loading PyTorch"), importing():
        yield


@contextmanager
def steps(what: str, total: int, done: int = 0, *, shown: bool = True) -> Iterator[Callable[..., object]]:
    """A progress bar on standard error, if that is a terminal.

    Args:
        what: the noun for the steps.
        total, done: the number of steps, and of those that are finished already.
        shown: whether there is a bar at all.

    Yields:
        a function to call after every step; it takes a new ``description``, or the steps ``completed`` in all.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    # Redrawn between two steps only: a drawing thread would compete with the models.
    with Progress(*columns, console=console, auto_refresh=False, disable=not (shown and console.is_terminal)) as bar:
        yield partial(bar.update, bar.add_task(what, total=total, completed=done), advance=1, refresh=True)
