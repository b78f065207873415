"""One process at a time for each file or folder that is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from draftwood.core.errors import ConfigError

_PATIENCE = 0.3  # seconds to wait for another process that is ending


@contextmanager
def locked(output: Path | None, instead: str = "") -> Iterator[None]:
    """Keep other processes from writing an output, also through links to it. Without an output there is no lock.

    The operating system locks OUTPUT.lock, an empty file, and releases it when the process ends. The file is removed while
    the lock is held: another process that has just opened it notices and takes a new one.

    Raises:
        ConfigError: another process holds it, or it cannot be taken. ``instead`` is what else the user can do.
    """
    if output is None:
        yield
        return
    path = Path(os.path.realpath(output))  # not resolve(), which raises RuntimeError for cyclic links
    path = path.with_name(path.name + ".lock")
    with suppress(OSError):  # which the lock will name
        if path.stat().st_size:
            raise ConfigError(f"{path} is not a lock file: move it away{instead}")
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=_PATIENCE, poll_interval=0.05)
    except Timeout:
        raise ConfigError(
            f"{output} is being written by another run, which holds {path}: wait for it, or stop it{instead}"
        ) from None
    except (OSError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{output} cannot be locked, with {path}: {why}{instead}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file; the library does it there
            path.unlink()
        lock.release()
