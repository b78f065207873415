"""The threads of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from draftwood.core import cores


def threads_alongside(runner: object) -> int | None:
    """The number of PyTorch threads while this runner's models run; None for all.

    Once woken, PyTorch's threads keep spinning for a while, and take cores from the threads of another engine.
    """
    return None if getattr(runner, "engine", "torch") == "torch" else 1


def set_threads(count: int | None) -> None:
    """Set the number of threads of PyTorch, and of the models that OpenVINO compiles from now on.

    None means :func:`free_threads`.
    """
    torch.set_num_threads(free_threads() if count is None else count)


def free_threads() -> int:
    """One thread for each core that other processes have left free since the start, at most PyTorch's number.

    If the environment variable ``OMP_NUM_THREADS`` is set, PyTorch's number.
    """
    return (
        torch.get_num_threads()
        if os.environ.get("OMP_NUM_THREADS")
        else min(torch.get_num_threads(), cores.SINCE_START.free())
    )


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """A context in which PyTorch uses this many threads; None leaves the number as it is."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
