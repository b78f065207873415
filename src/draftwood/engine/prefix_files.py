"""The files of a prefix cache on disk: each has a page of a text, or what is left behind the last one, with a checksum."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, final

import numpy as np
from jaxtyping import UInt8

from draftwood.core.errors import ConfigError
from draftwood.core.files import replacing

FORMAT: Final = "draftwood prefix 1"
"""Of the files; those of another one are deleted when they are met."""
_NAME: Final = re.compile(r"([0-9a-f]{32})-[0-9a-f]{32}-\d+\.safetensors(\.\d+\.part)?")
_HEADER: Final = 1 << 20  # bytes, at most
_LOG = logging.getLogger(__name__)
Bytes: TypeAlias = UInt8[np.ndarray, "_byte"]


class DamagedError(Exception):
    """A file that cannot be used, and was deleted."""


@final
class PrefixFiles:
    """Files in the format safetensors, of which the least recently used ones go. Several processes may have one folder.

    Args:
        path: the folder; it is made where there is none, for its owner only.
        size: bytes of all files, at most.

    Raises:
        ConfigError: the folder cannot be made or read.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            self.look()
            self._make_room(0)
        except OSError as error:
            raise ConfigError(f"cache_dir {path.parent} cannot be used: {error.strerror}; give another folder") from error

    def look(self) -> None:
        """See which files there are, also those of other processes; raises an OSError."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if _NAME.fullmatch(entry.name):
                        found.append((entry.stat().st_mtime_ns, entry.name, entry.stat().st_size))
        self._sizes: dict[str, int] = {}  # the least recently used one first
        self._after: dict[str, dict[str, None]] = {}
        self._total = 0
        for _, name, size in sorted(found):
            self._add(name, size)

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def after(self, parent: str) -> list[str]:
        """Names that begin with a digest, the last used one last."""
        return list(self._after.get(parent, ()))

    def write(self, name: str, tokens: Sequence[int], parts: Mapping[str, Bytes]) -> None:
        """Write a file that is not there as a whole, once there is room; raises an OSError."""
        from safetensors.numpy import save

        said = " ".join(map(str, tokens))
        data = save(dict(parts), {"format": FORMAT, "tokens": said, "sha1": _checksum(name, said, parts)})
        self._make_room(len(data))
        path = self.path / name
        with replacing(path, path.with_name(f"{name}.{os.getpid()}.part")) as part:
            made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(made, "wb") as file:
                file.write(data)
        self._add(name, len(data))

    def tokens(self, name: str) -> list[int]:
        """The tokens of a file, which are not checked; raises DamagedError."""
        with self._used(name) as file:
            return list(map(int, _header(file)["__metadata__"]["tokens"].split()))

    def read(self, name: str, into: Mapping[str, Bytes]) -> None:
        """Copy the memory of a file, once its checksum was compared; raises DamagedError."""
        with self._used(name) as file:
            header = _header(file)
            said, data = header.pop("__metadata__"), np.frombuffer(file.read(), np.uint8)
            parts = {key: data[slice(*one["data_offsets"])] for key, one in header.items()}
            if said["sha1"] != _checksum(name, said["tokens"], parts):
                raise ValueError("another checksum")
            if {key: part.size for key, part in parts.items()} != {key: part.size for key, part in into.items()}:
                raise ValueError("other sizes")
            for key, part in into.items():
                part[:] = parts[key]

    def use(self, names: Sequence[str]) -> None:
        """Files of one text were used, the first of which are the last to go."""
        now = time.time_ns()
        for i, name in reversed([(i, name) for i, name in enumerate(names) if name in self._sizes]):
            self._sizes[name] = self._sizes.pop(name)
            with suppress(OSError):  # another process has deleted it
                os.utime(self.path / name, ns=(now - 1000 * i, now - 1000 * i))

    @contextmanager
    def _used(self, name: str) -> Iterator[BinaryIO]:
        """An open file, which goes if it turns out to be damaged; raises DamagedError."""
        try:
            with (self.path / name).open("rb") as file:
                if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                    raise _RefusedError("open to others")
                yield file
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # another process has deleted it
                _LOG.warning("a file of the prefix cache cannot be read: %s", error)
            self._forget(name)
            raise DamagedError(name) from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            what = error if isinstance(error, _RefusedError) else "damaged"
            _LOG.warning("the file %s of the prefix cache is %s: it is deleted", name, what)
            self._delete(name)
            raise DamagedError(name) from error

    def _add(self, name: str, size: int) -> None:
        self._sizes[name] = size
        self._total += size
        if name.endswith(".safetensors"):
            self._after.setdefault(name[:32], {})[name] = None

    def _make_room(self, size: int) -> None:
        while self._sizes and self._total + size > self.size:
            self._delete(next(iter(self._sizes)))

    def _delete(self, name: str) -> None:
        self._forget(name)
        with suppress(OSError):  # as another process may have done
            (self.path / name).unlink()

    def _forget(self, name: str) -> None:
        self._total -= self._sizes.pop(name, 0)
        self._after.get(name[:32], {}).pop(name, None)


class _RefusedError(ValueError):
    """A whole file that is not used; says what it is."""


def _header(file: BinaryIO) -> dict[str, Any]:
    """What a file says of its parts; raises a ValueError, and others."""
    size = int.from_bytes(file.read(8), "little")
    if not 0 < size <= _HEADER:
        raise ValueError("no header")
    header = json.loads(file.read(size))
    if header["__metadata__"]["format"] != FORMAT:
        raise _RefusedError("of another version")
    return dict(header)


def _checksum(name: str, tokens: str, parts: Mapping[str, Bytes]) -> str:
    """It notices what a disk does to a file. Against people there are the modes of files."""
    found = hashlib.sha1(f"{name} {tokens}".encode(), usedforsecurity=False)
    for key in sorted(parts):
        found.update(f" {key} ".encode())
        found.update(np.ascontiguousarray(parts[key]).data)
    return found.hexdigest()
