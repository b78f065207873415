"""Progress: steps that an application may show, and no bars of ``transformers``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeAlias

Steps: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[], object]]]
"""Shows how far something is, given its name and its number of steps; a step is done when what it yields is called."""


def _hidden(_what: str, _total: int) -> AbstractContextManager[Callable[[], object]]:
    return nullcontext(lambda: None)


_STEPS: ContextVar[Steps] = ContextVar("_STEPS", default=_hidden)


def steps(what: str, total: int) -> AbstractContextManager[Callable[[], object]]:
    """A context that yields a function to call after every step; it is shown by what :func:`shown_by` was given."""
    return _STEPS.get()(what, total)


@contextmanager
def shown_by(show: Steps) -> Iterator[None]:
    """A context in which all steps are shown in this way."""
    token = _STEPS.set(show)
    try:
        yield
    finally:
        _STEPS.reset(token)


@contextmanager
def without_bars() -> Iterator[None]:
    """A context without progress bars of ``transformers``, which write a line a step into a log. Those of downloads stay."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    shown, downloads = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()  # and those of downloads
    if downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
        if not downloads:
            disable_progress_bars()
