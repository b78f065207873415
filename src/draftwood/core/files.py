"""Files that are replaced as a whole, and checks of files before the work begins."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftwood.core.errors import ConfigError, named


@contextmanager
def replacing(path: Path, part: Path | None = None) -> Iterator[Path]:
    """A path to write to; at the end of the context that file replaces ``path``. After an error ``path`` is as before.

    Args:
        part: the path to write to, in the same folder; by default, ``path`` with ``.part`` behind its name. Processes that
            may write at the same time need different ones.

    Raises:
        OSError: from a full disk and the like; it names the file.
    """
    part = part or path.with_name(path.name + ".part")
    try:
        with named(part):
            yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def replace_file(path: Path, text: str) -> None:
    """Write a text file as a whole; see :func:`replacing`."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before minutes of work.

    Raises:
        ConfigError: no such folder, no permission, or ``-``.
    """
    if str(path) == "-":
        raise ConfigError(f"{option} is -, which stands for standard input: name what to write, or leave {option} out")
    if not path.parent.is_dir():
        raise ConfigError(f"output folder {path.parent} does not exist: create it first, or name another {option}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"output {path} cannot be written: name another {option}")


def check_readable(path: Path) -> None:
    """Refuse a file that cannot be read, before models are loaded. The file is not opened: it may be a pipe.

    Raises:
        ConfigError: no such file, a folder, or no permission.
    """
    try:
        wrong = errno.EISDIR if stat.S_ISDIR(path.stat().st_mode) else 0 if os.access(path, os.R_OK) else errno.EACCES
    except OSError as error:
        wrong = error.errno or errno.EIO
    if wrong:
        raise ConfigError(f"input file {path} cannot be read: {os.strerror(wrong)}")
