"""The number of threads of the engines. It is chosen here for the command line, the server and Python.

It is what the user says: ``threads``, or ``OMP_NUM_THREADS``, or ``torch.set_num_threads``. Else it is one for each core
that other processes leave free (:mod:`draftwood.hardware.cores`), and follows them from round to round. Outside of
Draftwood's own work PyTorch keeps the number that it had.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Final, final

import torch

from draftwood.hardware.cores import FREE, FreeCores, default_threads

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@final
class ThreadRule:
    """The rule of this process.

    Args:
        free: the cores that other processes leave free.

    Attributes:
        given: the number that was given to Draftwood; it counts as long as it is PyTorch's.
        round: by thread, the number of its present round.
    """

    def __init__(self, free: FreeCores) -> None:
        self._free, self._defaults = free, default_threads()
        self.given: int | None = None
        self.round = local()

    @property
    def now(self) -> int:
        """The number of this thread's present round; outside of rounds that of this moment."""
        return getattr(self.round, "count", None) or self.count()

    @property
    def said(self) -> str | None:
        """The environment variable that sets PyTorch's number of threads; None if it is not set."""
        return next((name for name in _VARIABLES if os.environ.get(name)), None)

    def count(self) -> int:
        """The number of threads at this moment: PyTorch's own where the user has said it, else at most that."""
        own = torch.get_num_threads()
        if own == self.given or own not in self._defaults:
            return own
        free = self._free.count()
        return own if own <= free or self.said else free


RULE: Final = ThreadRule(FREE)


def set_threads(count: int | None) -> None:
    """Set the number of threads for the rest of this process; None keeps the choice of this moment, as for a measurement."""
    RULE.given = RULE.count() if count is None else count
    torch.set_num_threads(RULE.given)


@contextmanager
def loading_threads(count: int | None) -> Iterator[None]:
    """A context in which models are loaded, with the given number of threads from now on, or with that of this moment."""
    if count is not None:
        set_threads(count)
    before = torch.get_num_threads()
    torch.set_num_threads(RULE.count())
    try:
        yield
    finally:
        torch.set_num_threads(before)


@final
class chosen_threads:  # noqa: N801  # used as a function; a generator would take longer than the rest of it
    """A context for forwards of this runner's models: PyTorch has the number of threads of this moment.

    Next to another engine it is one: once woken, PyTorch's threads keep spinning for a while, and take cores from the
    threads of that engine.
    """

    def __init__(self, runner: object) -> None:
        self._one = not getattr(runner, "engine", "torch").startswith("torch")

    def __enter__(self) -> None:
        self._before, RULE.round.count = torch.get_num_threads(), RULE.count()
        torch.set_num_threads(1 if self._one else RULE.round.count)

    def __exit__(self, *_: object) -> None:
        RULE.round.count = None
        torch.set_num_threads(self._before)
