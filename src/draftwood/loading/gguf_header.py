"""The header of a GGUF file: metadata and the table of tensors.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the package ``gguf`` is not used: it takes
seconds for a large vocabulary, and a damaged length can keep it busy for ever.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

from draftwood.core.errors import ModelError
from draftwood.core.token_texts import tokens_digest

MAGIC: Final = b"GGUF"
PART: Final = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)  # in names of files of a split model
AGAIN: Final = "copy or download it again"
OTHER_FILES: Final = "give the model's safetensors folder or hub name"
Value: TypeAlias = bool | int | float | str
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # bytes, unless the metadata name another one
_DIMENSIONS = 4  # most dimensions of a tensor
_STRING, _ARRAY = 8, 9  # types of a value; those of plain numbers follow
NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of numbers, as :mod:`struct` and NumPy name them."""


class TensorInfo(NamedTuple):
    """One tensor of the file.

    Attributes:
        name: its name in the file.
        sizes: sizes of its dimensions, the fastest first.
        kind: number of its data type, a ``gguf.GGMLQuantizationType``.
        offset: bytes from the start of the data.
        part: the part of a split model that holds it, from 0.
    """

    name: str
    sizes: tuple[int, ...]
    kind: int
    offset: int
    part: int = 0

    @property
    def elements(self) -> int:
        """The number of its values."""
        return math.prod(self.sizes)


@final
@dataclass(frozen=True, kw_only=True)
class ArrayInfo:
    """An array of the metadata.

    Attributes:
        kind: number of the type of its values.
        count: how many there are.
        begin: the byte of the file where they begin.
    """

    kind: int
    count: int
    begin: int

    @property
    def holds_texts(self) -> bool:
        """Whether its values are texts."""
        return self.kind == _STRING


@final
@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a GGUF file.

    Attributes:
        path: the file.
        size: its bytes.
        metadata: the values by key; arrays are not read.
        tensors: the table of tensors.
        data_start: the byte where the tensors' data begin.
        parts: headers of the further parts of a split model, whose tensors are in the table.
    """

    path: Path
    size: int
    metadata: Mapping[str, Value | ArrayInfo]
    tensors: tuple[TensorInfo, ...]
    data_start: int
    parts: tuple[Header, ...] = ()

    @property
    def architecture(self) -> str:
        """The name of the architecture, such as ``llama``."""
        return str(self.metadata["general.architecture"])

    @cached_property
    def vocabulary(self) -> str:
        """Digest of the tokens and their numbers."""
        return tokens_digest(enumerate(self.texts("tokenizer.ggml.tokens")))

    def texts(self, key: str) -> list[str]:
        """An array of texts of the metadata; empty if the file has none of this name."""
        array = self.metadata.get(key)
        if not isinstance(array, ArrayInfo) or not array.holds_texts:
            return []
        with self.path.open("rb") as file:
            file.seek(array.begin)
            data = file.read(self.data_start - array.begin)
        found, at = [], 0
        for _ in range(array.count):
            size = int.from_bytes(data[at : at + 8], "little")
            found.append(data[at + 8 : at + 8 + size].decode("utf-8"))
            at += 8 + size
        return found

    def value(self, key: str, default: Any = None) -> Any:
        """A value of the metadata, of an array as a list; the default if the file has none."""
        array = self.metadata.get(key, default)
        if not isinstance(array, ArrayInfo):
            return array
        if array.holds_texts:
            return self.texts(key)
        with self.path.open("rb") as file:
            file.seek(array.begin)
            import numpy as np  # --help does without

            return list(np.fromfile(file, f"<{NUMBERS[array.kind]}", array.count).tolist())

    def single(self, key: str, default: Any = None) -> Any:
        """A value of the metadata; the default if the file has none, or an array."""
        found = self.metadata.get(key, default)
        return default if isinstance(found, ArrayInfo) else found

    def __str__(self) -> str:
        return f"the GGUF file {str(self.path)!r}"

    def place_of(self, tensor: TensorInfo, block: int, size: int) -> tuple[Path, int, int]:
        """The file of a tensor, its first byte there and its bytes; ``size`` of them hold ``block`` values.

        Raises:
            ModelError: the file ends before the tensor does.
        """
        holds = (self, *self.parts)[tensor.part]
        begin, count = holds.data_start + tensor.offset, tensor.elements // block * size
        if begin + count > holds.size:
            raise ModelError(
                f"{holds} is incomplete: tensor {tensor.name!r} ends at byte {begin + count}, but the file has "
                f"{holds.size}; {AGAIN}"
            )
        return holds.path, begin, count


@final
class _Reader:
    """Reads values one after another; ``at`` is the next byte."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def skip(self, count: int) -> int:
        """Skip bytes; returns where they began."""
        begin, self.at = self.at, self.at + count
        if self.at > len(self._data):
            raise ValueError(f"it ends after {len(self._data)} bytes, inside its header")
        return begin

    def number(self, code: str) -> Value:
        layout = struct.Struct(f"<{code}")
        found: Value = layout.unpack_from(self._data, self.skip(layout.size))[0]
        return found

    def integer(self, code: str = "Q") -> int:
        return int(self.number(code))

    def string(self) -> str:
        count = self.integer()
        begin = self.skip(count)
        return self._data[begin : begin + count].decode("utf-8")

    def value(self) -> Value | ArrayInfo:
        """A typed value; an array is skipped."""
        kind = self.integer("I")
        if kind == _ARRAY:
            return self._array()
        return self.string() if kind == _STRING else self.number(_code(kind))

    def _array(self) -> ArrayInfo:
        kind, count = self.integer("I"), self.integer()
        found = ArrayInfo(kind=kind, count=count, begin=self.at)
        if found.holds_texts:
            self._skip_texts(found.count)
        else:
            self.skip(found.count * struct.calcsize(f"<{_code(found.kind)}"))
        return found

    def _skip_texts(self, count: int) -> None:
        at, data, end = self.at, self._data, len(self._data)
        for _ in range(count):
            at += 8 + int.from_bytes(data[at : at + 8], "little")
            if at > end:
                break
        self.skip(at - self.at)

    def tensor(self) -> TensorInfo:
        name, dimensions = self.string(), self.integer("I")
        if not 1 <= dimensions <= _DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions, 1 to {_DIMENSIONS} are possible")
        sizes = tuple(self.integer() for _ in range(dimensions))
        return TensorInfo(name, sizes, self.integer("I"), self.integer())


def _code(kind: int) -> str:
    if kind not in NUMBERS:
        raise ValueError(f"a value has the unknown type {kind}")
    return NUMBERS[kind]


def read_header(path: Path) -> Header:
    """The header of a GGUF file; it is read again if the file has changed.

    Raises:
        ModelError: an empty file, one that is not GGUF, is damaged or incomplete, or has a version that is not supported.
        OSError: a file that cannot be opened.
    """
    state = path.stat()
    return _read(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, _size: int, _modified: int) -> Header:
    with path.open("rb") as file:
        begin = file.read(8)
        if begin[:4] != MAGIC:
            said = f"begins with {begin!r}" if begin else "is empty"
            raise ModelError(f"'{path}' is not a GGUF file: it {said}; give one, or the folder of the model, or {AGAIN}")
        _check_version(path, begin[4:])
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _header(path, _Reader(data), len(data))
            except (ValueError, struct.error) as error:
                raise ModelError(f"the GGUF file {str(path)!r} is damaged or incomplete ({error}): {AGAIN}") from error


def _check_version(path: Path, written: bytes) -> None:
    version = int.from_bytes(written, "little")
    if len(written) == 4 and version not in _VERSIONS:
        big = int.from_bytes(written, "big") in _VERSIONS
        what = "is for big-endian machines" if big else f"has version {version} of the format"
        raise ModelError(
            f"the GGUF file {str(path)!r} {what}, but versions {_VERSIONS[0]} and {_VERSIONS[1]}, little-endian, are "
            "supported: convert the model again with a current llama.cpp"
        )


def _header(path: Path, reader: _Reader, size: int) -> Header:
    reader.skip(len(MAGIC) + 4)
    tensors, values = reader.integer(), reader.integer()
    metadata: dict[str, Any] = dict((reader.string(), reader.value()) for _ in range(values))
    if not metadata.get("split.no") and not isinstance(metadata.get("general.architecture"), str):
        raise ValueError("its metadata name no architecture")
    table = tuple(reader.tensor() for _ in range(tensors))
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment}, not a number from 1")
    start = -(-reader.at // alignment) * alignment
    return Header(path=path, size=size, metadata=metadata, tensors=table, data_start=start)


def parts_of(path: Path) -> list[Path]:
    """The files of a model whose file this is: all parts of a split one, there or not."""
    if (match := PART.search(path.name)) is None:
        return [path]
    return [path.with_name(PART.sub(f"-{part:05}-of-{match[2]}", path.name)) for part in range(1, int(match[2]) + 1)]


def header_of(name: str | Path) -> Header | None:
    """The header of a GGUF file, with the tensors of all parts of a split model; None for another name. Raises as
    :func:`read_header`, and a ModelError if parts are missing."""
    if not (path := Path(name)).is_file():
        return None
    parts = parts_of(path)
    if lost := next((one.name for one in parts if not one.is_file()), None):
        raise ModelError(f"GGUF file {str(path)!r} is one of {len(parts)} parts, and {lost!r} is not in its folder: {AGAIN}")
    first, *others = map(read_header, parts)
    tensors = [tensor._replace(part=at) for at, one in enumerate((first, *others)) for tensor in one.tensors]
    return replace(first, tensors=tuple(tensors), parts=tuple(others))
