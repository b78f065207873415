"""What a drafter of hidden states has read of each row's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.runners.rows import remaining, remaining_rows

_STEP = 64  # slots; a graph takes longer for a new number of them, and cannot take none
_NEW = 4  # hidden states; a new number of them costs a graph a third of a short pass


class Unread(NamedTuple):
    """Hidden states that were not read yet, padded on the right, and their positions."""

    hidden: Float[Tensor, "row new taps_width"]
    positions: Int[Tensor, "row new"]


@runtime_checkable
class HiddenStore(Protocol):
    """Keys and values of the rows."""

    def clear(self) -> None:
        """Remove all rows."""

    def add(self, rows: int) -> None:
        """Append rows without text."""

    def begin(self, other: Any, row: int, length: int) -> None:
        """Replace all rows by one, with the first ``length`` slots of a row of another store."""

    def join(self, other: Any) -> None:
        """Append the only row of another store, which is cleared then."""

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only."""


@final
class TensorStore:
    """Keys and values in one tensor, whose rows have the same number of slots.

    Args:
        shape: layers, key-value heads, and their width.
        dtype, device: of keys and values.

    Attributes:
        parts: the keys and values.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        self._like = torch.zeros((), dtype=dtype, device=device)
        self.clear()

    def clear(self) -> None:
        layers, heads, dim = self._shape
        self.parts: Float[Tensor, "layer part row kv_head slot dim"] = self._like.new_zeros(layers, 2, 0, heads, _STEP, dim)

    def add(self, rows: int) -> None:
        layers, parts, _, heads, slots, dim = self.parts.shape
        self.parts = torch.cat([self.parts, self.parts.new_zeros(layers, parts, rows, heads, slots, dim)], dim=2)

    def begin(self, other: TensorStore, row: int, length: int) -> None:
        slots = max(1, -(-length // _STEP)) * _STEP
        layers, parts, _, heads, _, dim = other.parts.shape
        self.parts = other.parts.new_zeros(layers, parts, 1, heads, slots, dim)
        self.parts[:, :, 0, :, :length] = other.parts[:, :, row, :, :length]

    def join(self, other: TensorStore) -> None:
        slots = max(self.parts.shape[4], other.parts.shape[4])
        wide = [torch.nn.functional.pad(part, (0, 0, 0, slots - part.shape[4])) for part in (self.parts, other.parts)]
        self.parts = torch.cat(wide, dim=2)

    def keep(self, rows: Sequence[int]) -> None:
        self.parts = self.parts[:, :, list(rows)]

    def write(
        self, new: Float[Tensor, "layer part row kv_head new dim"], starts: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Per row, put the first of the new slots where its slots end."""
        longest = max(start + count for start, count in zip(starts, counts, strict=True))
        if (missing := longest - self.parts.shape[4]) > 0:
            more = -(-missing // _STEP) * _STEP
            self.parts = torch.nn.functional.pad(self.parts, (0, 0, 0, more))
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            self.parts[:, :, row, :, start : start + count] = new[:, :, row, :, :count]


@final
class HiddenMemory:
    """What was read of each row's hidden states, and hidden states that were not read.

    Args:
        store: keys and values of what was read.
        width: width of the hidden states.
        dtype, device: of hidden states.

    Attributes:
        store: as given.
        starts: positions of the tokens in the rows' first slots.
        lengths: slots [0, length) of a row hold tokens.
        waiting: tokens of each row whose hidden states were not read.
    """

    def __init__(self, store: HiddenStore, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.store: Any = store
        self._width = width
        self._like = torch.zeros((), dtype=dtype, device=device)
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self.store.clear()
        self.starts: list[int] = []
        self.lengths: list[int] = []
        self._unread: list[list[Tensor]] = []
        self.waiting: list[int] = []
        self._fresh: list[bool] = []  # rows that were joined with a memory, until their first round ends

    def another(self, store: HiddenStore) -> HiddenMemory:
        """An empty memory of the same kind, with a store of its own."""
        return HiddenMemory(store, self._width, self._like.dtype, self._like.device)

    def add(self, rows: int) -> None:
        """Append rows without text."""
        self.store.add(rows)
        self.starts += [0] * rows
        self.lengths += [0] * rows
        self._unread += [[] for _ in range(rows)]
        self.waiting += [0] * rows
        self._fresh += [False] * rows

    def begin(self, other: HiddenMemory, row: int, length: int) -> None:
        """Replace all rows by one, with what another memory knows of the first ``length`` tokens of a row's text."""
        self.clear()
        self.add(1)
        if other.starts[row]:  # it does not know the first ones
            return
        read = min(length, other.lengths[row])
        self.store.begin(other.store, row, read)
        self.lengths = [read]
        if length > read and other._unread[row]:
            new = torch.cat(other._unread[row])[: length - read]
            self._unread, self.waiting = [[new]], [len(new)]

    def join(self, other: HiddenMemory) -> None:
        """Append the only row of another memory, which is then empty. It is known from its second round on, as any row."""
        self.store.join(other.store)
        self.starts += other.starts
        self.lengths += other.lengths
        self._unread += other._unread
        self.waiting += other.waiting
        self._fresh.append(True)
        other.clear()

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""
        stay = remaining_rows(len(self.lengths), rows)
        self.store.keep(stay)
        self.starts, self.lengths = remaining(self.starts, rows), remaining(self.lengths, rows)
        self._unread, self._fresh = remaining(self._unread, rows), remaining(self._fresh, rows)
        self.waiting = remaining(self.waiting, rows)

    def append(self, hidden: Sequence[Float[Tensor, "_token taps_width"]], ends: Sequence[int]) -> None:
        """Append hidden states to the rows' texts, whose lengths are then ``ends``; they are read later.

        The first ones may be known already. A row forgets what does not come directly before them: another drafter, or none,
        was in use.
        """
        for row, (given, end) in enumerate(zip(hidden, ends, strict=True)):
            new = given[max(0, self.end(row) - end + len(given)) :]
            if not len(new):
                continue
            if self.end(row) != end - len(new):
                self.starts[row], self.lengths[row] = end - len(new), 0
                self._unread[row], self.waiting[row] = [], 0
            self._unread[row].append(new)
            self.waiting[row] += len(new)
        self._fresh = [False] * len(self._fresh)

    @property
    def unread_bytes(self) -> int:
        """Bytes of the hidden states that were not read."""
        return sum(part.nbytes for row in self._unread for part in row)

    def end(self, row: int) -> int:
        """Length of a row's text, read or not."""
        return self.starts[row] + self.lengths[row] + self.waiting[row]

    def known(self, ends: Sequence[int]) -> list[bool]:
        """Which rows' texts, of these lengths without their roots, are known to the end."""
        rows = enumerate(zip(self.lengths, self.waiting, self._fresh, ends, strict=True))
        return [n + waiting > 0 and not fresh and self.end(row) == end for row, (n, waiting, fresh, end) in rows]

    def unread_of(self, row: int) -> Float[Tensor, "_token taps_width"] | None:
        """The hidden states of a row that were not read; None without any."""
        return torch.cat(self._unread[row]) if self._unread[row] else None

    def unread(self) -> Unread:
        """What the next pass reads: a multiple of :data:`_NEW` tokens, of which the mask hides the padding."""
        new = max(1, -(-max(self.waiting) // _NEW)) * _NEW
        hidden = self._like.new_zeros(len(self.waiting), new, self._width)
        for row, count in enumerate(self.waiting):
            if (states := self.unread_of(row)) is not None:
                hidden[row, :count] = states
        first = torch.tensor([s + n for s, n in zip(self.starts, self.lengths, strict=True)], device=hidden.device)
        return Unread(hidden, first.unsqueeze(1) + torch.arange(new, device=hidden.device))

    def ends(self) -> Int[Tensor, "row"]:
        """Length of each row's text, read or not: the position of its root."""
        return torch.tensor([self.end(row) for row in range(len(self.lengths))], device=self._like.device)

    def mask(self, new: int, block: int, *, causal: bool) -> Float[Tensor, "row 1 block seen"]:
        """Additive mask of a block over the memory, the new tokens and the block itself, causal or not."""
        slots, rows = self.store.parts.shape[4], len(self.lengths)
        seen = np.zeros((rows, 1, block, slots + new + block), dtype=np.bool_)
        for row, (length, waiting) in enumerate(zip(self.lengths, self.waiting, strict=True)):
            seen[row, :, :, :length] = True
            seen[row, :, :, slots : slots + waiting] = True
        seen[:, :, :, slots + new :] = np.tri(block, dtype=np.bool_) if causal else True
        bias = np.where(seen, np.float32(0), np.float32(-np.inf))
        return torch.from_numpy(bias).to(self._like.device, self._like.dtype)

    def read(self) -> None:
        """All was read, and the store has its keys and values."""
        self.lengths = [length + count for length, count in zip(self.lengths, self.waiting, strict=True)]
        self._unread, self.waiting = [[] for _ in self.waiting], [0] * len(self.waiting)
