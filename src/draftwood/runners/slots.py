"""Which slot of a key-value cache holds which token, and what each new token sees: the host's half of the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.scores import Scores
from draftwood.runners.rows import staying

_CHUNK = 512  # pending tokens of one forward; bounds the memory of a long prompt's mask


@runtime_checkable
class KVCache(Protocol):
    """Keys and values of the rows, slot by slot."""

    def clear(self) -> None:
        """All rows leave."""
        ...

    def add(self, rows: int) -> None:
        """New rows without a text, behind those that are there."""
        ...

    def compact(self, source: Sequence[Sequence[int]], target: Sequence[int]) -> None:
        """End a round: per row, the slots ``source`` join the text, which ends before the slot ``target``."""
        ...

    def drop(self, rows: Sequence[int]) -> None:
        """These rows leave; the others keep their order."""
        ...


class ForwardBatch(NamedTuple):
    """What one forward reads: pending tokens, then nodes; they go to the slots from ``start`` on."""

    tokens: Int[Tensor, "row new"]
    positions: Int[Tensor, "row new"]
    mask: Float[Tensor, "row 1 new slot"] | None
    """Additive, over all slots in use, or over those of this round only; None where every new token sees all of them."""
    start: int
    keep: int
    """How many of the last tokens are to be scored."""


class ForwardOutput(NamedTuple):
    """What one forward returns."""

    logits: Float[Tensor, "row keep vocab"]
    hidden: Float[Tensor, "row new width"] | None = None


@final
class RoundSlots:
    """The slots of one round: [0, base) committed tokens, [base, base + pad) pending ones, aligned right, then the nodes.

    Args:
        cached: per row, committed tokens in the cache; they are in its slots [0, cached).
        pending: per row, committed tokens that are not.
        device: of the rows' ends.

    Attributes:
        ends: the roots' positions.
        end: the same, as one number if all are equal, else [row, 1].
        even: every row owns all slots in use, and nothing is padded: the common case, and the only one with a single row.
        nodes: nodes of this round so far.
        loaded: pending columns that are in the cache already.
        positions: of the tokens of this round's forwards.
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
        """Pending columns that are not in the cache yet."""
        return self.pad - self.loaded

    def batch(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, pending: int, nodes: int) -> ForwardBatch:
        """A forward that reads so many more pending columns, and then nodes."""
        start = self.base + self.loaded + self.nodes
        self.loaded += pending
        self.nodes += nodes
        self.positions.append(positions)
        return ForwardBatch(tokens, positions, mask, start, max(1, nodes))


@final
class SlotTable:
    """The rows of a runner. Per row the committed text is ``cached + pending``; the root comes after it.

    Args:
        cache: keys and values of the rows.
        dtype: of the masks.
        device: of tokens, positions and masks.
        longest: positions from here on do not exist; nodes there get the last one, and their scores are never used.
        bare: make no mask where there is nothing to hide.
        recent: make masks over this round's slots only, for a cache that knows itself what is hidden of the others.
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
        """Tokens of the longest row, its root included."""
        return max(self._round.ends, default=0) + 1

    def clear(self) -> None:
        """All rows leave."""
        self.cache.clear()
        self._cached, self._pending = [], []
        self._begin_round()

    def add(self, texts: Sequence[Sequence[int]]) -> None:
        """New rows, all of whose texts are pending."""
        self.cache.add(len(texts))
        self._cached += [0] * len(texts)
        self._pending += [list(text) for text in texts]
        self._begin_round()

    def drop(self, rows: Sequence[int]) -> None:
        """These rows leave; the others keep their order."""
        self.cache.drop(rows)
        stay = staying(len(self), rows)
        self._cached = [self._cached[r] for r in stay]
        self._pending = [self._pending[r] for r in stay]
        self._begin_round()

    def batches(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Iterator[ForwardBatch]:
        """What is read for new nodes of the round: what is still pending, in several forwards if it is long, and the nodes
        in the last one."""
        while self._round.waiting > _CHUNK:
            yield self.pending_batch(_CHUNK)
        yield self._node_batch(tokens, depths, ancestors)

    def pending_batches(self) -> Iterator[ForwardBatch]:
        """The pending tokens alone."""
        while self._round.waiting:
            yield self.pending_batch(min(_CHUNK, self._round.waiting))

    def pending_batch(self, count: int) -> ForwardBatch:
        """The next ``count`` columns of pending tokens."""
        columns = slice(self._round.loaded, self._round.loaded + count)
        mask = self._mask(count, None)
        return self._round.batch(*self._pending_columns(columns), mask, count, 0)

    def _node_batch(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> ForwardBatch:
        """What is still pending, and new nodes of the round."""
        now, n = self._round, tokens.shape[1]
        left, positions = now.waiting, depths + now.end
        if left:
            before, their_positions = self._pending_columns(slice(now.loaded, now.pad))
            tokens = torch.cat([before, tokens], dim=1)
            positions = torch.cat([their_positions, positions], dim=1)
        if self.longest is not None and max(now.ends) + now.nodes + n > self.longest:
            positions = positions.clamp(max=self.longest - 1)
        nothing_hidden = self._bare and now.even and not left and now.nodes + n == 1
        mask = None if nothing_hidden else self._mask(left, ancestors)
        return now.batch(tokens, positions, mask, left, n)

    def scores(self, outputs: Sequence[ForwardOutput], nodes: int) -> Scores:
        """What the forwards of :meth:`batches` returned for the last ``nodes`` tokens, and for the pending ones before."""
        logits, parts = outputs[-1].logits, [part for _, part in outputs if part is not None]
        if not parts:
            return Scores(logits)
        hidden = torch.cat(parts, dim=1)
        columns = hidden.shape[1] - nodes
        read = [row[max(0, columns - len(pending)) : columns] for row, pending in zip(hidden, self._pending, strict=True)]
        return Scores(logits, hidden[:, columns:], read)

    def slot_positions(self) -> Int[Tensor, "row slot"]:
        """The text positions of all slots in use; of slots that a row does not own, any."""
        base = torch.arange(self._round.base, device=self.device).expand(len(self), -1)
        return torch.cat([base, *self._round.positions], dim=1)

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        """End the round: per row, ``nodes`` join the text in this order, then the tokens ``pending``."""
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
        """Pending tokens and their positions, by one transfer to the device; shorter rows are padded on the left."""
        tokens, positions = [], []
        for cached, pending in zip(self._cached, self._pending, strict=True):
            missing = self._round.pad - len(pending)
            tokens.append(([0] * missing + pending)[columns])
            first = cached - missing
            row = range(first + columns.start, first + columns.start + len(tokens[-1]))
            last = row.stop if self.longest is None else self.longest - 1
            positions.append([min(max(position, 0), last) for position in row])
        its_tokens, its_positions = torch.tensor([tokens, positions], device=self.device).unbind()
        return its_tokens, its_positions

    def _mask(self, pending: int, ancestors: Bool[Tensor, "row node seen"] | None) -> Float[Tensor, "row 1 new slot"]:
        """Additive mask of ``pending`` new pending tokens and then the new nodes over all slots in use."""
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
        """What new tokens see of committed and pending ones; pending tokens see none of the nodes behind them."""
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
            square[:, range(pending), range(pending)] = True  # padding sees itself, so that no softmax is empty
        return visible
