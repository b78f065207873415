"""One process at a time for each output file."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from draftwood.core.errors import ConfigError, named

_OURS = "draftwood, process "
_PATIENCE = 0.3  # seconds to wait for another process that is ending


@contextmanager
def locked(output: Path | None) -> Iterator[None]:
    """Keep other processes from writing an output, also through links to it. Without an output there is no lock.

    The operating system locks OUTPUT.lock and releases it when the process ends. The file is removed while the lock is
    held: another process that has just opened it notices and takes a new one.

    Raises:
        ConfigError: another process holds the lock, or the output cannot be locked.
    """
    if output is None:
        yield
        return
    lock_path = Path(os.path.realpath(output))  # not resolve(), which raises RuntimeError for cyclic links
    lock_path = lock_path.with_name(lock_path.name + ".lock")
    lock = FileLock(lock_path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=_PATIENCE, poll_interval=0.05)
    except Timeout:
        owner = _owner_of(lock_path) or "unknown"
        raise ConfigError(
            f"output {output} is being written by another run ({owner}): wait for it, stop it, or name another --output"
        ) from None
    except (OSError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"output {output} cannot be locked, with {lock_path}: {why}; name another --output") from error
    try:
        _sign(lock_path)
        yield
    finally:
        _remove(lock_path)
        lock.release()


def _sign(lock_path: Path) -> None:
    """Write the holder of the lock into the file.

    Raises:
        ConfigError: the file exists and is not a lock.
    """
    if (owner := _owner_of(lock_path)) and not owner.startswith(_OURS):
        raise ConfigError(f"{lock_path} is not a lock file: move it away, or name another --output")
    with named(lock_path):
        lock_path.write_text(f"{_OURS}{os.getpid()} on {platform.node()}\n", encoding="utf-8")


def _owner_of(lock_path: Path) -> str:
    """The content of the lock file; empty where the system forbids reading a locked file."""
    try:
        return lock_path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _remove(lock_path: Path) -> None:
    """Remove the lock file if it is one."""
    if _owner_of(lock_path).startswith(_OURS):
        with suppress(OSError):  # Windows cannot remove an open file; the library does it there
            lock_path.unlink()
