"""A quick reader of GGUF files for ``transformers``.

It reads a file's header three times with the reader of the package ``gguf``, which makes several arrays of every token of
the vocabulary, and makes the table of tensor names once for every module. This is most of the time of a conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, final

import numpy as np

from draftwood.loading.gguf_header import Header, TensorInfo, Value

_OTHER_READER: Final = "gpt-oss"  # transformers reads fields of this architecture in a way of its own
_TOKENIZER: Final = "tokenizer."
_FLOATS: Final = {0: np.float32, 1: np.float16, 28: np.float64}
_ARRAY, _STRING = 9, 8
_KINDS: Final = {bool: 7, int: 11, float: 12, str: _STRING}
_ARRAYS: Final = {
    0: np.uint8, 1: np.int8, 2: np.uint16, 3: np.int16, 4: np.uint32, 5: np.int32, 6: np.float32, 7: np.bool_,
    10: np.uint64, 11: np.int64, 12: np.float64,
}  # fmt: skip


class Field(NamedTuple):
    """A value of the metadata, as ``gguf.GGUFReader`` gives it.

    Attributes:
        parts: arrays, one per number or text.
        data: the indices of the values in ``parts``.
        types: numbers of their types.
    """

    parts: Sequence[np.ndarray]
    data: Sequence[int]
    types: list[int]


@final
class ReadTensor:
    """A tensor of the file, as ``gguf.GGUFReader`` gives it; ``step`` is called when its data are read."""

    def __init__(self, header: Header, info: TensorInfo, step: Callable[[], object]) -> None:
        import gguf

        self.name, self.tensor_type = info.name, gguf.GGMLQuantizationType(info.kind)
        self._header, self._info, self._step = header, info, step

    @property
    def data(self) -> np.ndarray:
        """Its values as they are in the file: [..., bytes of a row] if they are quantised."""
        import gguf

        self._step()
        shape = tuple(reversed(self._info.sizes))
        kind = _FLOATS.get(self._info.kind)
        held = shape if kind is not None else gguf.quant_shape_to_byte_shape(shape, self.tensor_type)
        begin = self._header.data_start + self._info.offset
        return np.memmap(self._header.path, dtype=kind or np.uint8, mode="r", offset=begin, shape=held)


@final
class QuickReader:
    """What ``transformers`` reads of a ``gguf.GGUFReader``, without the tokenizer, which it reads in another way.

    Attributes:
        tensors: the tensors in the file's order.
    """

    def __init__(self, header: Header, step: Callable[[], object] = lambda: None) -> None:
        self._header = header
        self.tensors = [ReadTensor(header, info, step) for info in header.tensors]

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The metadata by key. Texts in arrays are empty: only the number of tokens is read of them."""
        found = {key: _field(value) for key, value in self._header.metadata.items()}
        for key, array in self._header.arrays.items():
            if array.holds_texts:
                found[key] = Field([np.zeros(0, np.uint8)], [0] * array.count, [_ARRAY, _STRING])
            elif not key.startswith(_TOKENIZER):
                kind = np.dtype(_ARRAYS[array.kind])
                values = np.fromfile(self._header.path, kind, array.count, offset=array.begin)
                found[key] = Field([*values.reshape(-1, 1)], range(array.count), [_ARRAY, array.kind])
        return found


@contextmanager
def quick_reading(header: Header, step: Callable[[], object]) -> Iterator[None]:
    """A context in which ``transformers`` reads this file quickly, if its version reads the tokenizer in another way.

    Args:
        step: is called for every tensor of the file.
    """
    if find_spec("transformers.integrations.gguf") is None or header.architecture == _OTHER_READER:
        yield
        return
    import gguf
    from transformers import modeling_gguf_pytorch_utils as theirs

    reader = gguf.GGUFReader

    def opened(path: str | Path, *rest: Any) -> Any:
        same = Path(path).resolve() == header.path.resolve()  # another thread may read another file
        return QuickReader(header, step) if same else reader(path, *rest)

    with ExitStack() as stack:
        stack.enter_context(_replaced(gguf, "GGUFReader", opened))
        stack.enter_context(_replaced(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)))
        stack.enter_context(_replaced(theirs, "tqdm", lambda tensors, **_settings: tensors))  # a bar that no setting hides
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _field(value: Value) -> Field:
    part = np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else np.array([value])
    return Field([part], [0], [_KINDS[type(value)]])
