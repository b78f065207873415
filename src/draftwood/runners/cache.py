"""A key-value cache for trees: buffers grow by doubling, and the accepted path is moved in place after the text."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import Cache

from draftwood.runners.forward import ForwardBatch
from draftwood.runners.rows import remaining_rows

_SMALLEST = 256


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Keys and values as the argument of a model's forward: ``cache``, or ``past_key_values`` before transformers 5.24."""
    return {"cache" if "cache" in signature(model.forward).parameters else "past_key_values": cache}


@final
class TreeCache(Cache):  # type: ignore[misc]
    """Keys and values of all layers in two buffers ``[layer, row, head, slot, dim]``.

    New entries go to the slots ``[start, start + n)`` of every row; the slot table knows what each slot holds.
    """

    def __init__(self, layer_count: int) -> None:
        super().__init__(layers=[])
        self.layer_count = layer_count
        self.clear()

    def clear(self) -> None:
        """Remove all rows and free their memory."""
        self.keys: Float[Tensor, "layer row head slot dim"] | None = None
        self.values: Float[Tensor, "layer row head slot dim"] | None = None
        self.start = 0
        self.capacity = _SMALLEST

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffers."""
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes

    def add(self, rows: int) -> None:
        """Append rows with empty slots."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = (
                torch.cat([part, part.new_zeros(part.shape[0], rows, *part.shape[2:])], dim=1)
                for part in (self.keys, self.values)
            )

    def reserve(self, slots: int) -> None:
        """Make room for ``slots`` entries per row."""
        while self.capacity < slots:
            self.capacity *= 2
        if self.keys is not None and self.values is not None and self.keys.shape[3] < self.capacity:
            self.keys, self.values = self._grown(self.keys), self._grown(self.values)

    def place(self, batch: ForwardBatch) -> None:
        """Make room for a batch, whose entries are written next."""
        self.reserve(batch.start + batch.tokens.shape[1])
        self.start = batch.start

    def _grown(self, old: Tensor) -> Tensor:
        new = old.new_zeros(*old.shape[:3], self.capacity, old.shape[4])
        new[:, :, :, : old.shape[3]] = old
        return new

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        if self.keys is None or self.values is None:
            rows, heads, _n, dim = key_states.shape
            self.keys = key_states.new_zeros(self.layer_count, rows, heads, self.capacity, dim)
            self.values = value_states.new_zeros(self.layer_count, rows, heads, self.capacity, value_states.shape[-1])
        new = key_states.shape[2]
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys.narrow(2, self.start, new).copy_(key_states)
        values.narrow(2, self.start, new).copy_(value_states)
        return keys.narrow(2, 0, self.start + new), values.narrow(2, 0, self.start + new)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.start

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return self.start + int(query_length), 0

    @property
    def is_compileable(self) -> bool:
        return False

    @torch.inference_mode()
    def compact(self, source: Sequence[Sequence[int]], target: Sequence[int]) -> None:
        """Per row, copy the slots ``source`` to the slots from ``target`` on."""
        if self.keys is None or self.values is None:
            return
        if len(source) == 1:
            slots, first = list(source[0]), target[0]
            if slots and slots != list(range(first, first + len(slots))):
                index = torch.tensor(slots, device=self.keys.device)
                for buffer in (self.keys, self.values):
                    buffer[:, :, :, first : first + len(slots)] = buffer.index_select(3, index)
            return
        moves = [
            (row, s, t + i)
            for row, (slots, t) in enumerate(zip(source, target, strict=True))
            for i, s in enumerate(slots)
            if s != t + i
        ]
        if moves:
            rows, old, new = torch.tensor(moves, device=self.keys.device).unbind(1)
            for buffer in (self.keys, self.values):
                buffer[:, rows, :, new] = buffer[:, rows, :, old]

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""
        if self.keys is not None and self.values is not None:
            stay = torch.tensor(remaining_rows(self.keys.shape[1], rows), dtype=torch.long, device=self.keys.device)
            self.keys, self.values = self.keys.index_select(1, stay), self.values.index_select(1, stay)

    @torch.inference_mode()
    def begin(self, other: TreeCache, row: int, length: int) -> None:
        """Replace all rows by one, with the first ``length`` slots of a row of another cache."""
        self.clear()
        self.reserve(length)
        if length and other.keys is not None and other.values is not None:
            self.keys, self.values = (self._grown(part[:, row : row + 1, :, :length]) for part in (other.keys, other.values))

    @torch.inference_mode()
    def join(self, other: TreeCache, rows: int) -> None:
        """Append the only row of another cache, which is then empty, to these ``rows`` rows."""
        self.reserve(other.capacity)
        other.reserve(self.capacity)
        if other.keys is None or other.values is None:  # without tokens
            self.add(1)
            return
        if self.keys is None or self.values is None:  # nothing was read in these rows
            self.keys, self.values = (
                part.new_zeros(part.shape[0], rows, *part.shape[2:]) for part in (other.keys, other.values)
            )
        self.keys = torch.cat([self.keys, other.keys], dim=1)
        self.values = torch.cat([self.values, other.values], dim=1)
        other.clear()
