"""Progress bars on standard error."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from draftwood.core.rounds import Stats


Advance: TypeAlias = "Callable[[Stats], None]"
"""Called after each finished text with the statistics of all texts so far."""


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
def progress(what: str, total: int, done: int, *, to_file: bool) -> Iterator[Advance]:
    """A progress bar on standard error, if that is a terminal that does not show the texts too.

    Args:
        what: the noun for the texts.
        total, done: the number of texts, and of those that are finished already.
        to_file: the texts go to a file, not to standard output.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    own = console.is_terminal and (to_file or not sys.stdout.isatty())
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not own) as bar:
        task = bar.add_task(what, total=total, completed=done)

        def advance(stats: Stats) -> None:
            bar.update(task, advance=1, description=f"{what}, {stats.tokens_per_second:.0f} tokens/s")

        yield advance


@contextmanager
def steps(what: str, total: int) -> Iterator[Callable[[], object]]:
    """A progress bar on standard error, if that is a terminal; yields a function to call after every step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Redrawn between two steps only: a drawing thread would compete with the models.
    console = Console(stderr=True)
    with Progress(*shown, console=console, auto_refresh=False, disable=not console.is_terminal) as progress:
        yield partial(progress.update, progress.add_task(what, total=total), advance=1, refresh=True)
