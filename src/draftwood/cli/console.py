"""Text of the command line and text on standard output."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from draftwood.core.errors import named


def typed(text: str) -> str:
    """A text from the command line. Under a locale that cannot decode its bytes they are read as UTF-8, if they are that."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


@contextmanager
def standard_output() -> Iterator[None]:
    """Write to standard output; where that fails, what it still holds is dropped, so that nothing fails again at the end.

    Raises:
        OSError: what came; it names standard output.
    """
    try:
        with named("standard output"):
            yield
    except OSError as error:
        if error.errno != errno.EPIPE:  # click sees to a reader that went away
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise
