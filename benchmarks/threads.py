"""One number of threads for a whole measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from draftwood.hardware import threads


@contextmanager
def kept_threads() -> Iterator[None]:
    """A context that keeps the number of threads that is right at its beginning."""
    before, given = torch.get_num_threads(), threads.RULE.given
    threads.set_threads(None)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        threads.RULE.given = given
