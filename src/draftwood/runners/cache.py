"""A key-value cache for trees: buffers grow by doubling, and the accepted path is moved in place after the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from itertools import chain
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers.cache_utils import Cache

from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.rows import remaining

_SMALLEST = 256
Buffer: TypeAlias = Float[Tensor, "_layer _row _head _slot _dim"]


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Keys and values as the argument of a model's forward: ``cache``, or ``past_key_values`` before transformers 5.24."""
    return {"cache" if "cache" in signature(model.forward).parameters else "past_key_values": cache}


@final
class TreeCache(Cache):  # type: ignore[misc]
    """Keys and values in buffers ``[layer, row, head, slot, dim]``.

    New entries go to the slots ``[start, start + n)`` of every row; the slot table knows what each slot holds.

    Args:
        layer_count: layers of the model.
        split: each layer has buffers of its own, on its device; by default all layers share two.

    Attributes:
        buffers: keys and values, by the layer, or by 0 if all share them; of those that were written.
        mends: attention reads zeros where keys and values are no numbers, as 0 times these is no number.
    """

    def __init__(self, layer_count: int, *, split: bool = False) -> None:
        super().__init__(layers=[])
        self.layer_count, self.split, self.mends = layer_count, split, False
        self.clear()

    def another(self) -> TreeCache:
        """An empty cache of the same model."""
        return TreeCache(self.layer_count, split=self.split)

    def clear(self) -> None:
        """Remove all rows and free their memory."""
        self.buffers: dict[int, tuple[Buffer, Buffer]] = {}
        self._rows = self.start = 0
        self._part: slice | None = None  # rows of the batch; None for all
        self.capacity = _SMALLEST

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._all())

    def _change(self, changed: Callable[[Buffer], Buffer]) -> None:
        """Replace every buffer by what is made of it."""
        self.buffers = {part: (changed(keys), changed(values)) for part, (keys, values) in self.buffers.items()}

    def _all(self) -> Iterator[Buffer]:
        return chain.from_iterable(self.buffers.values())

    def add(self, rows: int) -> None:
        """Append rows with empty slots."""
        self._change(lambda old: torch.cat([old, _empty(old, rows)], dim=1))
        self._rows += rows

    def reserve(self, slots: int) -> None:
        """Make room for ``slots`` entries per row."""
        while self.capacity < slots:
            self.capacity *= 2
        self._change(lambda old: self._grown(old) if old.shape[3] < self.capacity else old)

    def place(self, batch: ForwardBatch) -> None:
        """Make room for a batch, whose entries are written next."""
        rows, new = batch.tokens.shape
        self.reserve(batch.start + new)
        self.start, self._part = batch.start, slice(batch.row, batch.row + rows) if rows < self._rows else None

    def _grown(self, old: Tensor) -> Tensor:
        new = old.new_zeros(*old.shape[:3], self.capacity, old.shape[4])
        new[:, :, :, : old.shape[3]] = old
        return new

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        part, layer, layers = (layer_idx, 0, 1) if self.split else (0, layer_idx, self.layer_count)
        if part not in self.buffers:
            given, heads, _n, dim = key_states.shape
            rows = max(given, self._rows)
            self.buffers[part] = (
                key_states.new_zeros(layers, rows, heads, self.capacity, dim),
                value_states.new_zeros(layers, rows, heads, self.capacity, value_states.shape[-1]),
            )
        new = key_states.shape[2]
        keys, values = self.buffers[part][0][layer], self.buffers[part][1][layer]
        if self._part is not None:
            keys, values = keys[self._part], values[self._part]
        keys.narrow(2, self.start, new).copy_(key_states)
        values.narrow(2, self.start, new).copy_(value_states)
        keys, values = keys.narrow(2, 0, self.start + new), values.narrow(2, 0, self.start + new)
        return (keys, values) if not self.mends else (_numbers(keys), _numbers(values))

    def read(self, batch: ForwardBatch, forward: Callable[[ForwardBatch], ForwardOutput]) -> ForwardOutput:
        """The output of a forward of a model. Where something is no number, only the tokens that see it have NaN scores, and
        NaN keys."""
        self.place(batch)
        found = forward(batch)
        if not bool(found.logits.isnan().any()):  # host sync
            return found
        self.mends = True
        try:
            found = forward(batch)
        finally:
            self.mends = False
        spoilt, ends = self._spoilt(batch), None
        sees = True if batch.mask is None else batch.mask[:, 0] == 0
        while ends is None or not torch.equal(ends, spoilt[:, batch.start :]):
            ends = spoilt[:, batch.start :].clone()
            spoilt[:, batch.start :] |= (spoilt.unsqueeze(1) & sees).any(dim=2)
        self._spoil(batch, ends)
        found.logits.masked_fill_(ends[:, -batch.keep :, None], torch.nan)
        return found

    def _spoilt(self, batch: ForwardBatch) -> Bool[Tensor, "row slot"]:
        """Slots of a batch's rows, until its last one, in which something is no number."""
        rows, new = batch.tokens.shape
        parts = (buffer[:, batch.row : batch.row + rows, :, : batch.start + new] for buffer in self._all())
        found = [(~part.isfinite()).any(dim=4).any(dim=2).any(dim=0).to(batch.tokens.device) for part in parts]
        return torch.stack(found).any(dim=0)

    def _spoil(self, batch: ForwardBatch, tokens: Bool[Tensor, "row new"]) -> None:
        """Make the keys of these tokens of a batch NaN."""
        rows, new = tokens.shape
        for keys, _ in self.buffers.values():
            part = keys[:, batch.row : batch.row + rows, :, batch.start : batch.start + new]
            part.masked_fill_(tokens.to(keys.device)[None, :, None, :, None], torch.nan)

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
        moves = [
            (row, s, t + i)
            for row, (slots, t) in enumerate(zip(source, target, strict=True))
            for i, s in enumerate(slots)
            if s != t + i
        ]
        if moves:
            index = torch.tensor(moves)
            for buffer in self._all():
                index = index.to(buffer.device)
                rows, old, new = index.unbind(1)
                buffer[:, rows, :, new] = buffer[:, rows, :, old]

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""

        def left(old: Buffer) -> Buffer:
            kept = remaining(range(old.shape[1]), rows)
            return old.index_select(1, torch.tensor(kept, dtype=torch.long, device=old.device))

        self._change(left)
        self._rows -= len(rows)

    @torch.inference_mode()
    def copy_row(self, other: TreeCache, row: int, length: int) -> None:
        """Append a row with the first ``length`` slots of a row of this or another cache."""
        self.reserve(length)
        for part, buffers in list(other.buffers.items()):
            new = [self._grown(buffer[:, row : row + 1, :, :length]) for buffer in buffers]
            old = self.buffers.get(part) or [_empty(buffer, self._rows) for buffer in new]
            keys, values = (torch.cat(pair, dim=1) for pair in zip(old, new, strict=True))
            self.buffers[part] = keys, values
        self._rows += 1


def _numbers(part: Tensor) -> Tensor:
    return part.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _empty(like: Buffer, rows: int) -> Buffer:
    return like.new_zeros(like.shape[0], rows, *like.shape[2:])
