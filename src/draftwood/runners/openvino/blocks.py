"""Keys and values in blocks of slots, as OpenVINO's PagedAttention reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Int

from draftwood.runners.openvino.graph import openvino

BLOCK = 32
"""Slots of a block on the CPU."""
_FIRST = 32  # initial blocks


@final
class BlockStorage:
    """The blocks of all texts of a request. They grow by doubling.

    Args:
        compiled: the compiled graph.

    Attributes:
        tensors: an ``openvino.Tensor`` for each input; another mapping after the blocks have grown.
    """

    def __init__(self, compiled: Any) -> None:
        self._ports: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)  # names by type and shape of a block
        self._types: dict[str, Any] = {}
        for port in compiled.inputs:
            if (name := port.get_any_name()).startswith(("key_cache.", "value_cache.")):
                _blocks, *shape = port.get_partial_shape()
                kind = port.get_element_type()
                self._types[kind.get_type_name()] = kind
                self._ports[kind.get_type_name(), tuple(size.get_length() for size in shape)].append(name)
        self._free = list(range(_FIRST))
        self._count = _FIRST
        self._buffers = self._new(_FIRST)
        self.tensors: Mapping[str, Any] = self._tensors()

    def take(self, count: int) -> list[int]:
        """Blocks with arbitrary contents."""
        while len(self._free) < count:
            self._grow()
        taken = self._free[:count]
        del self._free[:count]
        return taken

    def give(self, blocks: Sequence[int]) -> None:
        """Return blocks that :meth:`take` gave."""
        self._free += blocks

    def copy(self, other: BlockStorage, source: Int[np.ndarray, "slot"], target: Int[np.ndarray, "slot"]) -> None:
        """Copy slots of another storage of the graph, or of this one, numbered through all blocks, to these slots."""
        (old, here), (new, there) = np.divmod(source, BLOCK), np.divmod(target, BLOCK)
        for buffer, values in zip(self._buffers, other._buffers, strict=True):
            buffer[:, new, :, there] = values[:, old, :, here]

    def _grow(self) -> None:
        old = self._buffers
        self._buffers = self._new(2 * self._count)
        for new, before in zip(self._buffers, old, strict=True):
            new[:, : self._count] = before
        self._free += range(self._count, 2 * self._count)
        self._count *= 2
        self.tensors = self._tensors()

    def _new(self, blocks: int) -> list[np.ndarray]:
        """A buffer for each kind of input, [input, block, head, slot, width]; numpy has no bfloat16, but its bits."""
        return [
            np.zeros((len(names), blocks, *shape), np.float32 if kind == "f32" else np.uint16)
            for (kind, shape), names in self._ports.items()
        ]

    def _tensors(self) -> dict[str, Any]:
        ov = openvino()
        return {
            name: ov.Tensor(part, list(part.shape), self._types[kind])
            for ((kind, _shape), names), buffer in zip(self._ports.items(), self._buffers, strict=True)
            for name, part in zip(names, buffer, strict=True)
        }
