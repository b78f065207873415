"""Which slot of a tree memory holds which token, and what each new token sees: the host's half of a key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class KVCache(Protocol):
    """A memory of keys and values."""

    def compact(self, source: Sequence[Sequence[int]], target: Sequence[int]) -> None:
        """End a round: per row, the slots ``source`` join the text, which ends before the slot ``target``."""
        ...


class ForwardBatch(NamedTuple):
    """What one forward reads: pending tokens, then nodes; they go to the slots from ``start`` on."""

    tokens: Int[Tensor, "row new"]
    positions: Int[Tensor, "row new"]
    mask: Float[Tensor, "row 1 new slot"] | None
    """Additive, over all slots in use, or over those of this round only; None where every new token sees all of them."""
    start: int


@final
class SlotTable:
    """The rows of a runner's memory. Per row the committed text is ``cached + pending``; the root comes after it.

    Slots of a round: [0, base) committed tokens, [base, base + pad) pending ones, aligned right, then the nodes in order.

    Args:
        texts: the rows' texts, all of them pending.
        dtype: of the masks.
        device: of tokens, positions and masks.
        longest: positions from here on do not exist; nodes there get the last one, and their scores are never used.
        bare: make no mask where there is nothing to hide.
        recent: make masks over this round's slots only, for a memory that knows itself what is hidden of the others.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        dtype: torch.dtype,
        device: torch.device,
        longest: int | None,
        *,
        bare: bool = False,
        recent: bool = False,
    ) -> None:
        self.device = device
        self.longest = longest
        self._bare = bare
        self._recent = recent
        self._seen_bias, self._hidden_bias = torch.tensor([0.0, -torch.inf], dtype=dtype, device=device).unbind()
        self._cached = [0] * len(texts)  # slots [0, cached) of a row hold committed tokens
        self._pending = [list(text) for text in texts]
        self._begin_round()

    def _begin_round(self) -> None:
        self._base = max(self._cached, default=0)
        self._pad = max((len(p) for p in self._pending), default=0)
        self._seen = 0  # nodes
        self._loaded = 0  # pending columns already in the cache
        self._ends = [c + len(p) for c, p in zip(self._cached, self._pending, strict=True)]  # the roots' positions
        self._end: int | Int[Tensor, "row 1"] = max(self._ends, default=0)
        if len(set(self._ends)) > 1:
            self._end = torch.tensor(self._ends, device=self.device).unsqueeze(1)
        self._read: list[Tensor] = []  # positions of this round's steps
        # Every row owns all slots in use, and nothing is padded: the common case, and the only one with a single row.
        self._even = len(set(self._cached)) < 2 and len({len(p) for p in self._pending}) < 2

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def seen(self) -> int:
        """Nodes of this round so far."""
        return self._seen

    @property
    def waiting(self) -> int:
        """Pending columns that are not in the cache yet."""
        return self._pad - self._loaded

    @property
    def longest_text(self) -> int:
        """Tokens of the longest row, its root included."""
        return max(self._ends, default=0) + 1

    def slots(self, new: int) -> int:
        """Slots in use once the pending tokens and ``new`` more nodes are in."""
        return self._base + self._pad + self._seen + new

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        self._cached = [self._cached[r] for r in rows]
        self._pending = [self._pending[r] for r in rows]
        self._begin_round()

    def chunk(self, count: int) -> ForwardBatch:
        """The next ``count`` columns of pending tokens alone; for texts too long for one forward."""
        columns = slice(self._loaded, self._loaded + count)
        mask = self._mask(count, None)
        return self._step(*self._pending_columns(columns), mask, count)

    def step(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> ForwardBatch:
        """What is still pending, and new nodes of the round."""
        n, left = tokens.shape[1], self.waiting
        positions = depths + self._end
        if left:
            before, their_positions = self._pending_columns(slice(self._loaded, self._pad))
            tokens = torch.cat([before, tokens], dim=1)
            positions = torch.cat([their_positions, positions], dim=1)
        if self.longest is not None and max(self._ends) + self._seen + n > self.longest:
            positions = positions.clamp(max=self.longest - 1)
        nothing_hidden = self._bare and self._even and not left and self._seen + n == 1
        mask = None if nothing_hidden else self._mask(left, ancestors)
        step = self._step(tokens, positions, mask, left)
        self._seen += n
        return step

    def _step(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, pending: int) -> ForwardBatch:
        start = self._base + self._loaded + self._seen
        self._loaded += pending
        self._read.append(positions)
        return ForwardBatch(tokens, positions, mask, start)

    def slot_positions(self) -> Int[Tensor, "row slot"]:
        """The text positions of all slots in use; of slots that a row does not own, any."""
        base = torch.arange(self._base, device=self.device).expand(len(self), -1)
        return torch.cat([base, *self._read], dim=1)

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]], cache: KVCache) -> None:
        """End the round: per row, ``nodes`` join the text in this order, then the tokens ``pending``."""
        if self._seen == 0:  # nothing was scored in this round
            for waiting, tokens in zip(self._pending, pending, strict=True):
                waiting.extend(tokens)
            self._begin_round()
            return
        first = self._base + self._pad
        source = [
            [*range(first - len(waiting), first), *(first + n for n in kept)]
            for waiting, kept in zip(self._pending, nodes, strict=True)
        ]
        cache.compact(source, self._cached)
        self._cached = [c + len(s) for c, s in zip(self._cached, source, strict=True)]
        self._pending = [list(tokens) for tokens in pending]
        self._begin_round()

    def _pending_columns(self, columns: slice) -> tuple[Int[Tensor, "row column"], Int[Tensor, "row column"]]:
        """Pending tokens and their positions, by one transfer to the device; shorter rows are padded on the left."""
        tokens, positions = [], []
        for cached, pending in zip(self._cached, self._pending, strict=True):
            missing = self._pad - len(pending)
            tokens.append(([0] * missing + pending)[columns])
            first = cached - missing
            row = range(first + columns.start, first + columns.start + len(tokens[-1]))
            last = row.stop if self.longest is None else self.longest - 1
            positions.append([min(max(position, 0), last) for position in row])
        its_tokens, its_positions = torch.tensor([tokens, positions], device=self.device).unbind()
        return its_tokens, its_positions

    def _mask(self, pending: int, ancestors: Bool[Tensor, "row node seen"] | None) -> Float[Tensor, "row 1 new slot"]:
        """Additive mask of ``pending`` new pending tokens and then the new nodes over all slots in use."""
        base = 0 if self._recent else self._base
        old = base + self._loaded
        if ancestors is not None and not pending and self._even:
            among = torch.where(ancestors, self._seen_bias, self._hidden_bias)
            return (torch.nn.functional.pad(among, (old, 0)) if old else among).unsqueeze(1)
        n, seen = (0, 0) if ancestors is None else ancestors.shape[1:]
        shape = len(self), pending + n, old + pending + seen
        visible = torch.from_numpy(self._visible(shape, base, pending)).to(self.device)
        if ancestors is not None:
            visible[:, pending:, old + pending :] = ancestors
        return torch.where(visible, self._seen_bias, self._hidden_bias).unsqueeze(1)

    def _visible(self, shape: tuple[int, int, int], base: int, pending: int) -> Bool[np.ndarray, "row new slot"]:
        """What new tokens see of committed and pending ones; pending tokens see none of the nodes behind them."""
        visible = np.ones(shape, dtype=np.bool_)
        ready = base + self._loaded + pending
        if min(self._cached, default=0) < base:
            visible[:, :, :base] = (np.arange(base) < np.array(self._cached)[:, None])[:, None]
        if any(len(p) < self._pad for p in self._pending):
            padding = np.array([self._pad - len(p) for p in self._pending])
            visible[:, :, base:ready] = (np.arange(self._loaded + pending) >= padding[:, None])[:, None]
        if pending:
            visible[:, :pending, ready:] = False
        if pending > 1 or (pending and not self._even):
            square = visible[:, :pending, ready - pending : ready]
            square &= np.tri(pending, dtype=np.bool_)
            square[:, range(pending), range(pending)] = True  # padding sees itself, so that no softmax is empty
        return visible
