"""The slot table: which token each slot of a key-value cache holds, and what each new token sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.scores import Scores
from draftwood.runners.cache import TreeCache
from draftwood.runners.context import Window
from draftwood.runners.forward import ForwardBatch, ForwardOutput, RoundSlots
from draftwood.runners.protocols import PerNode, Prefix, Seen
from draftwood.runners.rows import RowTable
from draftwood.sampling.rows import Row

_CHUNK = 1024  # most pending tokens of one forward; bounds the size of a long prompt's mask


@final
class SlotTable(RowTable[int]):
    """The rows of a runner, and the number of slots [0, cached) of each that hold committed tokens. All other tokens before
    the root are pending. A row that comes is the last one of the cache.

    Args:
        cache: keys and values of the rows.
        dtype: type of the masks.
        device: device of tokens, positions and masks.
        longest: number of positions; later nodes get the last position, and their scores are never used.
        bare: omit masks that hide nothing.
        window: the model's sliding attention; not with ``bare``.
    """

    _now: RoundSlots | None

    def __init__(
        self,
        cache: TreeCache,
        dtype: torch.dtype,
        device: torch.device,
        longest: int | None,
        *,
        bare: bool = False,
        window: Window | None = None,
    ) -> None:
        self.cache = cache
        self.device = device
        self.longest = longest
        self._bare = bare
        self._window = window
        self._biases = torch.tensor([0.0, -torch.inf], dtype=dtype, device=device).unbind()
        self._copies: WeakKeyDictionary[Row, TreeCache] = WeakKeyDictionary()  # of kept texts
        super().__init__(lambda _: 0, lambda held, _, length: min(held, length))

    @property
    def _round(self) -> RoundSlots:
        """The present round, which begins with its first use; it reads all tokens before the roots."""
        if self._now is None:
            pending = [row.tokens[cached:-1] for row, cached in zip(self.rows, self.parts, strict=True)]
            self._now = RoundSlots(self.parts, pending, self.device)
        return self._now

    @property
    def longest_text(self) -> int:
        """Length of the longest text, its root included."""
        return max((len(row.tokens) for row in self.rows), default=1)

    def clear(self) -> None:
        self.cache.clear()
        super().clear()
        self._now = None

    def set_rows(self, rows: Sequence[Row]) -> tuple[list[int], list[Row]]:
        old, coming = len(self.rows), self.coming
        gone, empty = super().set_rows(rows)
        if empty and coming is not None:
            gone.append(old)
        if gone:
            self.cache.drop(gone)
        if empty:
            self.cache.add(len(empty))
        self._now = None
        return gone, empty

    def held(self, row: Row) -> int:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.held`."""
        return self.of(row) or 0

    def keep(self, row: Row, text: Row) -> None:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.keep`, with a copy."""
        kept = self.cache.another()
        kept.copy_row(self.cache, self.rows.index(row), self.held(row))
        self._copies[text], self.kept[text] = kept, self.held(row)

    def cut(self, row: Row, length: int) -> None:
        """Forget what is in memory of a present row behind its first ``length`` tokens, between two rounds."""
        index = self.rows.index(row)
        self.parts[index] = min(length, self.parts[index])

    @property
    def memory_bytes(self) -> int:
        """Bytes of the keys and values of all rows and kept texts."""
        return sum(cache.memory_bytes for cache in (self.cache, *self._copies.values()))

    def begin(self, row: Row, prefix: Prefix | None) -> int:
        if self.part_read(row) is None:
            if not self.rows:
                self.cache.clear()
            elif self.coming is not None:
                self.cache.drop([len(self.rows)])
            self.coming = None
            if prefix is None or not (length := min(prefix.length, self.held(prefix.row))):
                self.cache.add(1)
            else:
                present = prefix.row in self.rows
                source, at = (self.cache, self.rows.index(prefix.row)) if present else (self._copies[prefix.row], 0)
                self.cache.copy_row(source, at, length)
        return super().begin(row, prefix)

    def batches(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Iterator[ForwardBatch]:
        """The forwards for new nodes: first long pending text in parts, then the rest of it with the nodes."""
        while self._round.waiting > _CHUNK:
            yield self._pending_batch(self._round, _CHUNK)
        yield self._node_batch(*(torch.as_tensor(part, device=self.device) for part in (tokens, depths, ancestors)))

    def batches_to(self, end: int) -> Iterator[ForwardBatch]:
        """The forwards that read the first ``end`` tokens of the row that comes later."""
        assert self.coming is not None
        row, read = self.coming
        now = RoundSlots([read], [row.tokens[read:end]], self.device, len(self.rows))
        while now.waiting:
            yield self._pending_batch(now, min(_CHUNK, now.waiting))
        self.coming = row, now.ends[0]

    def _pending_batch(self, now: RoundSlots, count: int) -> ForwardBatch:
        """A forward of the next ``count`` columns of pending tokens."""
        columns = slice(now.loaded, now.loaded + count)
        return self._batch(now, *self._pending_columns(now, columns), self._mask(now, count, None), count, 0)

    def _node_batch(self, tokens: Tensor, depths: Tensor, ancestors: Tensor) -> ForwardBatch:
        """A forward of the remaining pending tokens and the new nodes."""
        now, n = self._round, tokens.shape[1]
        left, positions = now.waiting, depths + now.end
        if left:
            before, positions_before = self._pending_columns(now, slice(now.loaded, now.pad))
            tokens = torch.cat([before, tokens], dim=1)
            positions = torch.cat([positions_before, positions], dim=1)
        if self.longest is not None and max(now.ends) + now.nodes + n > self.longest:
            positions = positions.clamp(max=self.longest - 1)
        nothing_hidden = self._bare and now.nodes + n == 1 and now.even and not left
        mask = None if nothing_hidden else self._mask(now, left, ancestors)
        return self._batch(now, tokens, positions, mask, left, n)

    def _batch(
        self, now: RoundSlots, tokens: Tensor, positions: Tensor, mask: Tensor | None, pending: int, nodes: int
    ) -> ForwardBatch:
        """A forward of these numbers of pending columns and nodes."""
        start, slid = now.add(positions, pending, nodes), None
        if self._window is not None and mask is not None:
            slid = self._slid(now, mask, positions, self._window.size)
            mask, slid = (slid, None) if self._window.everywhere else (mask, slid)
        return ForwardBatch(tokens, positions, mask, slid, now.row, start, max(1, nodes))

    def _slid(self, now: RoundSlots, mask: Tensor, positions: Tensor, size: int) -> Float[Tensor, "row 1 new slot"]:
        """The mask, which also hides slots whose text positions are ``size`` or more before a new token's."""
        if max(now.ends) + now.nodes <= size:  # no position is outside the first window
            return mask
        outside = now.slot_positions().unsqueeze(1) <= positions.unsqueeze(2) - size
        return torch.where(outside.unsqueeze(1), self._biases[1], mask)

    def scores(
        self, tokens: PerNode, depths: PerNode, ancestors: Seen, forward: Callable[[ForwardBatch], ForwardOutput]
    ) -> Scores:
        """Scores of new nodes by these forwards, and hidden states of the nodes and of the pending tokens."""
        outputs = [forward(batch) for batch in self.batches(tokens, depths, ancestors)]
        logits, parts = outputs[-1].logits, [part for _, part in outputs if part is not None]
        if not parts:
            return Scores(logits)
        hidden = torch.cat(parts, dim=1)
        columns = hidden.shape[1] - tokens.shape[1]
        counts = map(len, self._round.pending)
        read = [row[max(0, columns - count) : columns] for row, count in zip(hidden, counts, strict=True)]
        return Scores(logits, hidden[:, columns:], read)

    def slot_positions(self) -> Int[Tensor, "row slot"]:
        """Text positions of all slots in use; arbitrary for slots that a row does not own."""
        return self._round.slot_positions()

    def commit(self, nodes: Sequence[Sequence[int]]) -> None:
        """End the round: per row, the text has the tokens of these nodes next, in this order."""
        if self._now is not None and self._now.positions:  # else nothing was read in this round
            first = self._now.base + self._now.pad
            source = [
                [*range(first - len(waiting), first), *(first + n for n in kept)]
                for waiting, kept in zip(self._now.pending, nodes, strict=True)
            ]
            self.cache.compact(source, self.parts)
            self.parts = [c + len(s) for c, s in zip(self.parts, source, strict=True)]
        self._now = None

    def _pending_columns(
        self, now: RoundSlots, columns: slice
    ) -> tuple[Int[Tensor, "row column"], Int[Tensor, "row column"]]:
        """Pending tokens and their positions, in one transfer to the device; shorter rows are padded on the left."""
        tokens, positions = [], []
        for cached, pending in zip(now.cached, now.pending, strict=True):
            missing = now.pad - len(pending)
            tokens.append(([0] * missing + pending)[columns])
            first = cached - missing
            row = range(first + columns.start, first + columns.start + len(tokens[-1]))
            last = row.stop if self.longest is None else self.longest - 1
            positions.append([min(max(position, 0), last) for position in row])
        token_columns, position_columns = torch.tensor([tokens, positions], device=self.device).unbind()
        return token_columns, position_columns

    def _mask(
        self, now: RoundSlots, pending: int, ancestors: Bool[Tensor, "row node seen"] | None
    ) -> Float[Tensor, "row 1 new slot"]:
        """Additive mask of ``pending`` pending tokens, then of the new nodes, over all slots in use."""
        (shown, hidden), old = self._biases, now.base + now.loaded
        if ancestors is not None and not pending and now.even:
            among = torch.where(ancestors, shown, hidden)
            return (torch.nn.functional.pad(among, (old, 0)) if old else among).unsqueeze(1)
        n, seen = (0, 0) if ancestors is None else ancestors.shape[1:]
        shape = len(now.pending), pending + n, old + pending + seen
        visible = torch.from_numpy(_visible(now, shape, pending)).to(self.device)
        if ancestors is not None:
            visible[:, pending:, old + pending :] = ancestors
        return torch.where(visible, shown, hidden).unsqueeze(1)


def _visible(now: RoundSlots, shape: tuple[int, int, int], pending: int) -> Bool[np.ndarray, "row new slot"]:
    """Which committed and pending tokens the new tokens see; pending tokens see no nodes."""
    visible, base = np.ones(shape, dtype=np.bool_), now.base
    ready = base + now.loaded + pending
    if min(now.cached, default=0) < base:
        visible[:, :, :base] = (np.arange(base) < np.array(now.cached)[:, None])[:, None]
    if any(len(p) < now.pad for p in now.pending):
        padding = np.array([now.pad - len(p) for p in now.pending])
        visible[:, :, base:ready] = (np.arange(now.loaded + pending) >= padding[:, None])[:, None]
    if pending:
        visible[:, :pending, ready:] = False
    if pending > 1 or (pending and not now.even):
        square = visible[:, :pending, ready - pending : ready]
        square &= np.tri(pending, dtype=np.bool_)
        square[:, range(pending), range(pending)] = True  # padding sees itself, or its softmax would be empty
    return visible
