"""No progress bars of ``transformers``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
