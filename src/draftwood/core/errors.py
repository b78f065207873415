"""Errors of Draftwood. Each message names what was given, what was expected and what to do.

::

    DraftwoodError
    ├── ConfigError      an option or a combination of options that cannot be honoured exactly
    │   └── PairingError     a drafter, a verifier, a target or a draft model that do not fit together
    ├── ModelError       a model or tokenizer that cannot be loaded or cannot be driven by a tree
    ├── CacheError       a sequence that does not fit the model's context or memory
    └── NumericsError    NaN or infinite scores
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_MEMORY = re.compile(r"can.?t allocate|(cannot|failed to) allocate|not enough memory|out of memory|bad_alloc", re.I)


class DraftwoodError(Exception):
    """Base class of all errors that Draftwood raises itself."""


class ConfigError(DraftwoodError, ValueError):
    """An option, or a combination of options, that cannot be honoured exactly."""


class PairingError(ConfigError):
    """A drafter, a verifier, a target or a draft model that do not fit together; the message names those that do."""


class ModelError(DraftwoodError):
    """A model or tokenizer that cannot be loaded or cannot score a tree."""


class CacheError(DraftwoodError):
    """A sequence that does not fit the model's context or the memory of a runner."""


class NumericsError(DraftwoodError, ArithmeticError):
    """Scores that are NaN, or distributions without any possible token."""


def needs(what: str, packages: str, extra: str) -> str:
    """The sentence of an error for packages that are not installed."""
    return f"{what} needs the package {packages}: {install(extra)}"


def install(extra: str) -> str:
    """What installs an extra. No index has Draftwood, so it names the checkout, or a wheel."""
    return f'run pip install ".[{extra}]" in the checkout of Draftwood, or pip install "WHEEL[{extra}]" with its wheel'


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of any library means that memory ran out; each library has its own class or message for that."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def lacks_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, or would have: an error says so, or what caused it."""
    return error is not None and (is_out_of_memory(error) or lacks_memory(error.__cause__))


@contextmanager
def named(file: str | Path) -> Iterator[None]:
    """A context that adds the file name to system errors without one, such as that of a full disk.

    Raises:
        OSError: the error, with the file name.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(file)) from error
