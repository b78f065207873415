"""Models converted from GGUF files, in the user's cache: each is made once and found again by the file's content."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, final

from filelock import FileLock, Timeout

from draftwood.core.errors import ModelError
from draftwood.hardware.machine import cache_folder, versions

_LOG = logging.getLogger(__name__)
_RECORD: Final = "source.json"
_DIGITS = 16  # of a digest in a folder's name
_PATIENCE = 0.1  # seconds to wait for another process without a note


@final
@dataclass(frozen=True, kw_only=True)
class Converted:
    """A converted model.

    Attributes:
        folder: model and tokenizer, as ``save_pretrained`` writes them.
        source: the GGUF file that it was made from, which may be gone.
        digest: SHA-256 of that file.
        dtype: the number format of the weights.
        bytes: size of the folder's files.
    """

    folder: Path
    source: str
    digest: str
    dtype: str
    bytes: int


def store_folder() -> Path:
    """The folder of converted models; it may be deleted at any time."""
    return cache_folder() / "gguf"


def stored() -> list[Converted]:
    """All complete models of the store, by name."""
    found = [_read(path.parent) for path in sorted(store_folder().glob(f"*/{_RECORD}"))]
    return [one for one in found if one is not None]


def converted(file: Path) -> Path:
    """The folder with the model of a GGUF file. It is made at the first call, by one process at a time.

    Raises:
        ModelError: a file that cannot be read or converted, or a cache that cannot be written.
    """
    try:
        state = file.stat()
        digest = _digest(file.resolve(), state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"the GGUF file {str(file)!r} cannot be read ({error.strerror or error})") from error
    try:
        return _find(digest) or _make(file, digest)
    except (OSError, NotImplementedError) as error:  # the latter where files cannot be locked
        raise ModelError(
            f"the model of {str(file)!r} cannot be kept in {store_folder()} ({error}): free some space there, or set "
            "DRAFTWOOD_CACHE to another folder"
        ) from error


@lru_cache
def _digest(file: Path, size: int, modified: int) -> str:
    """SHA-256 of a file. Size and time of the last change are there for the memory of this function only."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _find(digest: str) -> Path | None:
    """The folder of a complete model; None if there is none."""
    for folder in store_folder().glob(f"*-{digest[:_DIGITS]}"):
        if (found := _read(folder)) is not None and found.digest == digest:
            return folder
    return None


def _read(folder: Path) -> Converted | None:
    """A model of the store; None if its record is missing or a file has another size than recorded."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        sizes = dict(record["files"])
        if sizes != {name: (folder / name).stat().st_size for name in sizes}:
            return None
        return Converted(
            folder=folder, source=str(record["source"]), digest=str(record["sha256"]), dtype=str(record["dtype"]),
            bytes=sum(sizes.values()),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make(file: Path, digest: str) -> Path:
    from draftwood.loading.gguf_convert import convert, kept_dtype, require_packages
    from draftwood.loading.gguf_header import read_header

    header = read_header(file)
    require_packages()
    folder = store_folder() / f"{file.stem}-{digest[:_DIGITS]}"
    store_folder().mkdir(parents=True, exist_ok=True)
    with _locked(file, digest):
        if (found := _find(digest)) is not None:  # another process made it
            return found
        for rest in store_folder().glob(f"*-{digest[:_DIGITS]}*"):
            if rest.is_dir():  # of a process that was stopped, or damaged
                shutil.rmtree(rest)
        dtype = str(kept_dtype(header)).removeprefix("torch.")
        size, where = f"{header.size / 1e6:.0f} MB", store_folder()
        _LOG.info("GGUF file %r (%s) is converted to %s once and kept in %s", str(file), size, dtype, where)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=store_folder()))
        try:
            convert(header, part)
            facts = {"source": str(file.resolve()), "sha256": digest, "dtype": dtype, "versions": versions()}
            files = {path.name: path.stat().st_size for path in sorted(part.iterdir())}
            (part / _RECORD).write_text(json.dumps({**facts, "files": files}, indent=1) + "\n", encoding="utf-8")
            part.chmod(0o755)  # mkdtemp keeps other users out
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


@contextmanager
def _locked(file: Path, digest: str) -> Iterator[None]:
    """Wait until no other process converts this file. The lock's file is removed while the lock is held."""
    path = store_folder() / f"{digest[:_DIGITS]}.lock"
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        _LOG.info("another process is converting %r; waiting for it", str(file))
        lock.acquire()
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file; the library does it there
            path.unlink()
        lock.release()
