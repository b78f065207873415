"""One process at a time for each output file."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from draftwood.cli.job.journal import check_output
from draftwood.core.errors import ConfigError, named

_OURS = "draftwood, process "
_PATIENCE = 0.3  # seconds for another process that is just about to end


@contextmanager
def locked(output: Path | None) -> Iterator[None]:
    """Keep other processes from writing an output, under whatever name they know it; nothing to do without one.

    The lock is one of the operating system on OUTPUT.lock, so it ends with the process, however that ends. The file is
    removed while the lock is still held: another process that has just opened it notices and takes a new one.

    Raises:
        ConfigError: another process holds the lock, or an output that cannot be written.
    """
    if output is None:
        yield
        return
    check_output(output)
    place = Path(os.path.realpath(output))  # not resolve(), which raises another error for links in a circle
    place = place.with_name(place.name + ".lock")
    lock = FileLock(place, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=_PATIENCE, poll_interval=0.05)
    except Timeout:
        owner = _owner_of(place) or "it has left no name"
        raise ConfigError(
            f"output {output} is being written by another run ({owner}): wait for its end, stop it, or name another --output"
        ) from None
    except (OSError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"output {output} cannot be locked, with {place}: {why}; name another --output") from error
    try:
        _sign(place)
        yield
    finally:
        _remove(place)
        lock.release()


def _sign(place: Path) -> None:
    """Say who holds the lock.

    Raises:
        ConfigError: the file was there and is something else.
    """
    if (owner := _owner_of(place)) and not owner.startswith(_OURS):
        raise ConfigError(f"{place} is in the way, where the output's lock belongs: move it, or name another --output")
    with named(place):
        place.write_text(f"{_OURS}{os.getpid()} on {platform.node()}\n", encoding="utf-8")


def _owner_of(place: Path) -> str:
    """What the lock file says; nothing where the system lets nobody read what is locked."""
    try:
        return place.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _remove(place: Path) -> None:
    """Remove the lock file, unless it is something else."""
    if _owner_of(place).startswith(_OURS):
        with suppress(OSError):  # Windows removes no open file; there the library does it
            place.unlink()
