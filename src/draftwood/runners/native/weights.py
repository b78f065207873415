"""Weights as they lie in files: numbers, or codes of GGUF's types, expanded where numbers are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import byref
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from draftwood.core.errors import ModelError
from draftwood.native.library import Matrix, library

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
FLOATS: Final = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""Types of numbers, by GGML's number."""
BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 39: (32, 17),
}  # fmt: skip
"""Types that the engine knows, by GGML's number: numbers of a block, and its bytes."""


@final
@dataclass(frozen=True, kw_only=True)
class Weight:
    """A weight.

    Attributes:
        data: its bytes.
        kind: GGML's number of their type.
        shape: as the model has it.
        head: if not 0, the outputs of heads of this size are in the order in which llama.cpp rotates them.
        mapped: ``data`` are pages of a file.
        make: makes the bytes, which files hold in another order or apart, where they are needed; ``data`` is empty then.
    """

    data: Bytes
    kind: int
    shape: tuple[int, ...]
    head: int = 0
    mapped: bool = False
    make: Callable[[], Bytes] | None = None

    def __post_init__(self) -> None:
        came = self.nbytes if self.make else self.data.nbytes
        if self.shape[-1] % BLOCKS[self.kind][0] or came != self.nbytes or not self.data.flags.c_contiguous:
            raise ModelError(f"a weight of shape {list(self.shape)} takes {self.nbytes} bytes in order, not {came}")

    @property
    def nbytes(self) -> int:
        """Its size."""
        numbers, size = BLOCKS[self.kind]
        return math.prod(self.shape) // numbers * size

    def made(self) -> Weight:
        """The weight with its bytes."""
        return replace(self, data=self.make().reshape(-1), make=None, mapped=False) if self.make else self

    @property
    def coded(self) -> bool:
        """Whether these are codes."""
        return self.kind not in FLOATS

    def matrix(self, *, coded: bool = False) -> Matrix:
        """The weight as the engine takes it, once it is made; ``coded`` leaves codes as they are."""
        flags = Matrix.INTERLEAVED * bool(self.head) + Matrix.CODED * coded
        return Matrix(self.data.ctypes.data, self.kind, flags, self.data.nbytes if self.mapped else 0)

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """Its numbers as a new tensor; those of codes are float32 numbers that are rounded to ``dtype``."""
        columns, exact = self.shape[-1], torch.float32 if dtype not in (torch.float32, torch.bfloat16) else dtype
        out = torch.empty(self.shape, dtype=exact)
        rows = math.prod(self.shape[:-1])
        made = self.made()
        library().expand(byref(made.matrix()), rows, columns, exact == torch.bfloat16, out.data_ptr())
        return (turned(out, self.head) if self.head else out).to(dtype)

    def rows(self, numbers: Sequence[int]) -> Weight:
        """The weight with these rows only."""
        assert not self.head
        data = self.data.reshape(self.shape[0], -1)[np.asarray(numbers)]
        if self.mapped:
            library().expand(byref(self.matrix()), 0, self.shape[-1], 0, None)  # lets the pages go
        return replace(self, data=data, shape=(len(data), *self.shape[1:]), mapped=False)

    def split(self, sizes: Sequence[int]) -> tuple[Weight, ...]:
        """Parts with these numbers of rows, as :meth:`Tensor.split` makes them."""
        rows, ends = self.data.reshape(self.shape[0], -1), np.cumsum(sizes)
        return tuple(
            replace(self, data=rows[end - size : end].reshape(-1), shape=(size, *self.shape[1:]))
            for size, end in zip(sizes, ends, strict=True)
        )


def turned(weight: Any, head: int) -> Any:
    """A weight, or a tensor, whose heads of this size are in the order of ``transformers``, from llama.cpp's order."""
    if isinstance(weight, Weight):
        return replace(weight, head=head)
    return weight.view(-1, head // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def sized(name: str, weight: Any, *shape: int) -> Any:
    """A weight, or None, that has this shape.

    Raises:
        ModelError: it has another one.
    """
    if weight is not None and tuple(weight.shape) != shape:
        raise ModelError(
            f"the weight {name!r} has shape {list(weight.shape)}, and by the configuration it has {list(shape)}: "
            "load another checkpoint"
        )
    return weight


def rounded(tensor: Tensor, bits: int) -> Weight:
    """A matrix in codes: of 8 bits with a scale for 32 inputs (Q8_0), or of 4 bits with a least number too (Q4_1).

    Rounding is to the nearest code.
    """
    values = tensor.detach().float().numpy().reshape(-1, 32)
    if bits == 8:
        scale = (np.abs(values).max(1, keepdims=True) / 127).astype(np.float16)
        codes = _codes(values, scale, 0.0, -127, 127).astype(np.int8).view(np.uint8)
        data = np.concatenate([scale.view(np.uint8), codes], 1)
    else:
        least = values.min(1, keepdims=True).astype(np.float16)
        scale = ((values.max(1, keepdims=True) - least) / 15).astype(np.float16)
        codes = _codes(values, scale, least.astype(np.float32), 0, 15).astype(np.uint8)
        data = np.concatenate([scale.view(np.uint8), least.view(np.uint8), codes[:, :16] | codes[:, 16:] << 4], 1)
    return Weight(data=np.ascontiguousarray(data).reshape(-1), kind=8 if bits == 8 else 3, shape=tuple(tensor.shape))


def _codes(values: Any, scale: Any, least: Any, lowest: int, highest: int) -> Any:
    steps = scale.astype(np.float32)
    return np.clip(np.rint((values - least) / np.where(steps == 0, 1, steps)), lowest, highest)
