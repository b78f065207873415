"""Progress on standard error: a bar on a terminal, else lines."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import Final, final

import click

_APART: Final = 5.0  # seconds between two lines of progress, at least


@contextmanager
def note(text: str) -> Iterator[None]:
    """Show a note on standard error during a slow step, if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(text) if console.is_terminal else nullcontext():
        yield


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection: there is little garbage, and looking for it takes time.

    Ctrl-C ends the import, also where a library catches it and goes on or fails for want of what it was importing.
    """
    collects, came = gc.isenabled(), list[int]()
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler and current_thread() is main_thread()

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    gc.disable()
    try:
        if ours:
            signal.signal(signal.SIGINT, interrupt)
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
        if collects:
            gc.enable()
        if came:
            raise KeyboardInterrupt


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


@contextmanager
def shares(what: str) -> Iterator[Callable[[str, float], object]]:
    """The progress of a command that takes long, in shares of its work or time.

    Yields:
        a function to call with the current stage, in a few words, and the share that is done.
    """
    from rich.console import Console

    if not Console(stderr=True).is_terminal:
        yield Lines(what)
        return
    with steps(what, 100) as advance:
        yield lambda stage, share: advance(description=stage, completed=round(100 * min(share, 1.0)))


@final
class Lines:
    """Progress without a terminal: a line as soon as the rest can be estimated, then one in each tenth.

    A command that ends within a few seconds writes none.
    """

    def __init__(self, what: str, clock: Callable[[], float] = monotonic) -> None:
        self._what, self._clock = what, clock
        self._began = self._last = clock()
        self._due = 0.0  # the share from which on the next line is written

    def __call__(self, stage: str, share: float) -> None:
        now = self._clock()
        if self._due <= share < 1.0 and share > 0.0 and now - self._last >= _APART:
            self._last, self._due = now, share + 0.1
            left = duration((now - self._began) * (1.0 / share - 1.0))
            click.echo(f"{self._what}: {stage}, {share:.0%} done, about {left} left", err=True)


def duration(seconds: float) -> str:
    """Seconds in a few words: ``40 s``, ``3 min``."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
