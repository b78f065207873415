"""The slot table: which token each slot of a key-value cache holds, and what each new token sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.scores import Scores
from draftwood.runners.rows import remaining_rows

_CHUNK = 512  # most pending tokens of one forward; bounds the size of a long prompt's mask


@runtime_checkable
class KVCache(Protocol):
    """Keys and values of the rows, slot by slot."""

    def clear(self) -> None:
        """Remove all rows."""

    def add(self, rows: int) -> None:
        """Append rows with empty texts."""

    def compact(self, source: Sequence[Sequence[int]], target: Sequence[int]) -> None:
        """End a round: per row, append the slots ``source`` to the text, which ends before the slot ``target``."""

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""


class ForwardBatch(NamedTuple):
    """The input of one forward: pending tokens, then nodes. Their slots begin at ``start``."""

    tokens: Int[Tensor, "row new"]
    positions: Int[Tensor, "row new"]
    mask: Float[Tensor, "row 1 new slot"] | None
    """Additive, over all slots in use or only those of this round; None if every new token sees all of them."""
    start: int
    keep: int
    """Number of last tokens to score."""


class ForwardOutput(NamedTuple):
    """The output of one forward."""

    logits: Float[Tensor, "row keep vocab"]
    hidden: Float[Tensor, "row new width"] | None = None


@final
class RoundSlots:
    """The slots of one round: [0, base) committed tokens, [base, base + pad) pending ones, aligned right, then the nodes.

    Args:
        cached: per row, the number of committed tokens in the cache, in slots [0, cached).
        pending: per row, the committed tokens that are not in the cache.
        device: device of ``end``.

    Attributes:
        ends: positions of the roots.
        end: the same, as one number if all are equal, else [row, 1].
        even: every row owns all slots in use and none is padded, as always with a single row.
        nodes: number of nodes of this round so far.
        loaded: number of pending columns that are in the cache.
        positions: positions of the tokens, for each forward of this round.
    """

    def __init__(self, cached: Sequence[int], pending: Sequence[Sequence[int]], device: torch.device) -> None:
        self.base = max(cached, default=0)
        self.pad = max(map(len, pending), default=0)
        self.ends = [c + len(p) for c, p in zip(cached, pending, strict=True)]
        self.end: int | Int[Tensor, "row 1"] = max(self.ends, default=0)
        if len(set(self.ends)) > 1:
            self.end = torch.tensor(self.ends, device=device).unsqueeze(1)
        self.even = len(set(cached)) < 2 and len(set(map(len, pending))) < 2
        self.nodes = 0
        self.loaded = 0
        self.positions: list[Int[Tensor, "row new"]] = []

    @property
    def waiting(self) -> int:
        """Number of pending columns that are not in the cache."""
        return self.pad - self.loaded

    def batch(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, pending: int, nodes: int) -> ForwardBatch:
        """The next forward, with these numbers of pending columns and nodes."""
        start = self.base + self.loaded + self.nodes
        self.loaded += pending
        self.nodes += nodes
        self.positions.append(positions)
        return ForwardBatch(tokens, positions, mask, start, max(1, nodes))


@final
class SlotTable:
    """The rows of a runner. Per row the committed text is ``cached + pending``, and the root follows it.

    Args:
        cache: keys and values of the rows.
        dtype: type of the masks.
        device: device of tokens, positions and masks.
        longest: number of positions; later nodes get the last position, and their scores are never used.
        bare: omit masks that hide nothing.
        recent: make masks over this round's slots only, for a cache that masks the others itself.
    """

    def __init__(
        self,
        cache: KVCache,
        dtype: torch.dtype,
        device: torch.device,
        longest: int | None,
        *,
        bare: bool = False,
        recent: bool = False,
    ) -> None:
        self.cache = cache
        self.device = device
        self.longest = longest
        self._bare = bare
        self._recent = recent
        self._seen_bias, self._hidden_bias = torch.tensor([0.0, -torch.inf], dtype=dtype, device=device).unbind()
        self._cached: list[int] = []  # slots [0, cached) of a row hold committed tokens
        self._pending: list[list[int]] = []
        self._begin_round()

    def _begin_round(self) -> None:
        self._round = RoundSlots(self._cached, self._pending, self.device)

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def longest_text(self) -> int:
        """Length of the longest text, its root included."""
        return max(self._round.ends, default=0) + 1

    def clear(self) -> None:
        """Remove all rows."""
        self.cache.clear()
        self._cached, self._pending = [], []
        self._begin_round()

    def add(self, texts: Sequence[Sequence[int]]) -> None:
        """Append rows; all tokens of their texts are pending."""
        self.cache.add(len(texts))
        self._cached += [0] * len(texts)
        self._pending += [list(text) for text in texts]
        self._begin_round()

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""
        self.cache.drop(rows)
        stay = remaining_rows(len(self), rows)
        self._cached = [self._cached[r] for r in stay]
        self._pending = [self._pending[r] for r in stay]
        self._begin_round()

    def batches(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Iterator[ForwardBatch]:
        """The forwards for new nodes: first long pending text in parts, then the rest of it with the nodes."""
        while self._round.waiting > _CHUNK:
            yield self.pending_batch(_CHUNK)
        yield self._node_batch(tokens, depths, ancestors)

    def pending_batches(self) -> Iterator[ForwardBatch]:
        """The forwards of the pending tokens alone."""
        while self._round.waiting:
            yield self.pending_batch(min(_CHUNK, self._round.waiting))

    def pending_batch(self, count: int) -> ForwardBatch:
        """A forward of the next ``count`` columns of pending tokens."""
        columns = slice(self._round.loaded, self._round.loaded + count)
        mask = self._mask(count, None)
        return self._round.batch(*self._pending_columns(columns), mask, count, 0)

    def _node_batch(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> ForwardBatch:
        """A forward of the remaining pending tokens and the new nodes."""
        now, n = self._round, tokens.shape[1]
        left, positions = now.waiting, depths + now.end
        if left:
            before, positions_before = self._pending_columns(slice(now.loaded, now.pad))
            tokens = torch.cat([before, tokens], dim=1)
            positions = torch.cat([positions_before, positions], dim=1)
        if self.longest is not None and max(now.ends) + now.nodes + n > self.longest:
            positions = positions.clamp(max=self.longest - 1)
        nothing_hidden = self._bare and now.even and not left and now.nodes + n == 1
        mask = None if nothing_hidden else self._mask(left, ancestors)
        return now.batch(tokens, positions, mask, left, n)

    def scores(self, outputs: Sequence[ForwardOutput], nodes: int) -> Scores:
        """Scores of the last ``nodes`` tokens of :meth:`batches`, and hidden states of these and of the pending tokens."""
        logits, parts = outputs[-1].logits, [part for _, part in outputs if part is not None]
        if not parts:
            return Scores(logits)
        hidden = torch.cat(parts, dim=1)
        columns = hidden.shape[1] - nodes
        read = [row[max(0, columns - len(pending)) : columns] for row, pending in zip(hidden, self._pending, strict=True)]
        return Scores(logits, hidden[:, columns:], read)

    def slot_positions(self) -> Int[Tensor, "row slot"]:
        """Text positions of all slots in use; arbitrary for slots that a row does not own."""
        base = torch.arange(self._round.base, device=self.device).expand(len(self), -1)
        return torch.cat([base, *self._round.positions], dim=1)

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        """End the round: per row, append ``nodes`` to the text in this order, then the tokens ``pending``."""
        if self._round.nodes == 0:  # nothing was scored in this round
            for waiting, tokens in zip(self._pending, pending, strict=True):
                waiting.extend(tokens)
            self._begin_round()
            return
        first = self._round.base + self._round.pad
        source = [
            [*range(first - len(waiting), first), *(first + n for n in kept)]
            for waiting, kept in zip(self._pending, nodes, strict=True)
        ]
        self.cache.compact(source, self._cached)
        self._cached = [c + len(s) for c, s in zip(self._cached, source, strict=True)]
        self._pending = [list(tokens) for tokens in pending]
        self._begin_round()

    def _pending_columns(self, columns: slice) -> tuple[Int[Tensor, "row column"], Int[Tensor, "row column"]]:
        """Pending tokens and their positions, in one transfer to the device; shorter rows are padded on the left."""
        tokens, positions = [], []
        for cached, pending in zip(self._cached, self._pending, strict=True):
            missing = self._round.pad - len(pending)
            tokens.append(([0] * missing + pending)[columns])
            first = cached - missing
            row = range(first + columns.start, first + columns.start + len(tokens[-1]))
            last = row.stop if self.longest is None else self.longest - 1
            positions.append([min(max(position, 0), last) for position in row])
        token_columns, position_columns = torch.tensor([tokens, positions], device=self.device).unbind()
        return token_columns, position_columns

    def _mask(self, pending: int, ancestors: Bool[Tensor, "row node seen"] | None) -> Float[Tensor, "row 1 new slot"]:
        """Additive mask of ``pending`` pending tokens, then of the new nodes, over all slots in use."""
        base = 0 if self._recent else self._round.base
        old = base + self._round.loaded
        if ancestors is not None and not pending and self._round.even:
            among = torch.where(ancestors, self._seen_bias, self._hidden_bias)
            return (torch.nn.functional.pad(among, (old, 0)) if old else among).unsqueeze(1)
        n, seen = (0, 0) if ancestors is None else ancestors.shape[1:]
        shape = len(self), pending + n, old + pending + seen
        visible = torch.from_numpy(self._visible(shape, base, pending)).to(self.device)
        if ancestors is not None:
            visible[:, pending:, old + pending :] = ancestors
        return torch.where(visible, self._seen_bias, self._hidden_bias).unsqueeze(1)

    def _visible(self, shape: tuple[int, int, int], base: int, pending: int) -> Bool[np.ndarray, "row new slot"]:
        """Which committed and pending tokens the new tokens see; pending tokens see no nodes."""
        now, visible = self._round, np.ones(shape, dtype=np.bool_)
        ready = base + now.loaded + pending
        if min(self._cached, default=0) < base:
            visible[:, :, :base] = (np.arange(base) < np.array(self._cached)[:, None])[:, None]
        if any(len(p) < now.pad for p in self._pending):
            padding = np.array([now.pad - len(p) for p in self._pending])
            visible[:, :, base:ready] = (np.arange(now.loaded + pending) >= padding[:, None])[:, None]
        if pending:
            visible[:, :pending, ready:] = False
        if pending > 1 or (pending and not now.even):
            square = visible[:, :pending, ready - pending : ready]
            square &= np.tri(pending, dtype=np.bool_)
            square[:, range(pending), range(pending)] = True  # padding sees itself, or its softmax would be empty
        return visible
