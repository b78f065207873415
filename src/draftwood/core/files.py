"""Files that are replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftwood.core.errors import named


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
