"""Texts that are Unicode, and text on standard output."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from draftwood.core.checks import is_unicode
from draftwood.core.errors import ConfigError, named


def check_unicode(what: str, text: str) -> None:
    """Refuse a text that UTF-8 cannot hold; ``what`` begins the error."""
    if not is_unicode(text):
        raise ConfigError(f"{what} is not UTF-8 text: convert it, for example with iconv -t utf-8")


@contextmanager
def standard_output() -> Iterator[None]:
    """Write to standard output. After a failure its buffer is dropped, so that Python does not fail again at exit."""
    try:
        with named("standard output"):
            yield
    except OSError as error:
        if error.errno != errno.EPIPE:  # click handles a closed pipe
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise
