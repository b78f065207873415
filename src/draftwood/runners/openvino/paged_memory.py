"""The texts of a graph with paged attention: which blocks each row owns, and what its new tokens see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.runners.forward import ForwardBatch
from draftwood.runners.openvino.blocks import BLOCK, BlockStorage
from draftwood.runners.openvino.sizes import ForwardSizes
from draftwood.runners.rows import remaining_rows


class PagedInputs(NamedTuple):
    """The input of one forward of a graph with paged attention."""

    tokens: Int[Tensor, "row new"]
    positions: Int[Tensor, "row new"]
    padding: tuple[int, ...]
    """Per row, how many of its first tokens are not read."""
    repeated: int
    """How many of the first tokens were read before in this round, and are read again."""
    past: list[int]
    """Per row, the number of its slots that all its new tokens see."""
    blocks: list[list[int]]
    seen: list[Bool[np.ndarray, "new new"]]
    """Per row, which of its tokens that are read each of them sees; empty if each sees those before it."""
    spare: int
    """Padding tokens that keep the size of the forward. They are a row of their own, in the block ``spare_block``."""
    spare_block: int


@final
class _Row:
    """The slots of a text.

    Attributes:
        blocks: the blocks that hold them, in order.
        length: the number of slots of earlier rounds.
        slots: the slots of this round as the slot table numbers them, in order; they begin at ``length``.
    """

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.length = 0
        self.slots: list[int] = []

    def indices(self, slots: Sequence[int] | Int[np.ndarray, "slot"]) -> Int[np.ndarray, "slot"]:
        """Slots of the text as :meth:`BlockStorage.copy` numbers them."""
        block, slot = np.divmod(np.asarray(slots, np.int64), BLOCK)
        return np.asarray(self.blocks, np.int64)[block] * BLOCK + slot


@final
class PagedMemory:
    """Keys and values of texts in the blocks of a storage; each row owns its blocks.

    Attention sees all slots of a row, so those of a round that are kept are moved to follow its text, and the next round
    overwrites the others. A graph tells the tokens of one forward apart, but not those of earlier ones: where nodes follow
    other nodes of their round, these are read again.

    Args:
        storage: the blocks.
        smallest: as for :class:`ForwardSizes`.
    """

    def __init__(self, storage: BlockStorage, smallest: int = 1) -> None:
        self._storage = storage
        self._sizes = ForwardSizes(smallest)
        [self._spare_block] = storage.take(1)
        self._rows: list[_Row] = []
        self._end_round()

    def _end_round(self) -> None:
        self._nodes: ForwardBatch | None = None  # the nodes of this round
        for row in self._rows:
            row.slots = []

    def clear(self) -> None:
        """Remove all rows."""
        self.drop(range(len(self._rows)))
        self._end_round()

    def add(self, rows: int) -> None:
        """Append rows with empty texts."""
        self._rows += [_Row() for _ in range(rows)]

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""
        stay = remaining_rows(len(self._rows), rows)
        for index in rows:
            self._storage.give(self._rows[index].blocks)
        self._rows = [self._rows[index] for index in stay]

    def another(self, storage: BlockStorage) -> PagedMemory:
        """A memory without rows in another storage of the graph."""
        return PagedMemory(storage, self._sizes.smallest)

    def begin(self, other: PagedMemory, row: int, length: int) -> None:
        """Replace all rows by one, with the first ``length`` tokens of a row of another memory."""
        self.clear()
        self._append(other, other._rows[row], length)

    def join(self, other: PagedMemory, rows: int) -> None:
        """Append the only row of another memory, which is then empty, to these ``rows`` rows."""
        [row] = other._rows
        self._append(other, row, row.length)
        other.clear()

    def _append(self, other: PagedMemory, row: _Row, length: int) -> None:
        """Append a row with the first ``length`` tokens of a row of another memory."""
        new = _Row()
        self._reserve(new, length)
        self._storage.copy(other._storage, row.indices(range(length)), new.indices(range(length)))
        new.length = length
        self._rows.append(new)

    def cut(self, length: int) -> None:
        """Keep the first ``length`` tokens of the only row, or no row if it is 0."""
        if not length:
            self.clear()
            return
        self._rows[0].length = length

    def compact(self, source: Sequence[Sequence[int]], target: Sequence[int]) -> None:
        """End a round: per row, keep the slots in ``source``, as the slot table numbers them, in this order."""
        for row, slots in zip(self._rows, source, strict=True):
            number = {slot: index for index, slot in enumerate(row.slots)}
            kept = np.array([number[slot] for slot in slots], np.int64)
            moved = kept != np.arange(len(kept))
            if moved.any():
                old, new = row.length + kept[moved], row.length + np.flatnonzero(moved)
                self._storage.copy(self._storage, row.indices(old), row.indices(new))
            row.length += len(kept)
        self._end_round()

    def inputs(self, batch: ForwardBatch) -> PagedInputs:
        """The input of the graph; takes the blocks that the new tokens need."""
        padding, new = batch.padding or (0,) * len(self._rows), batch.tokens.shape[1]
        before = self._nodes
        for row, unread in zip(self._rows, padding, strict=True):
            row.slots += range(batch.start + unread, batch.start + new)
            self._reserve(row, row.length + len(row.slots))
        repeated = 0
        if batch.nodes:
            if before is not None:
                batch, repeated = _together(before, batch), before.nodes
            self._nodes = _nodes_of(batch)
        read = [batch.tokens.shape[1] - unread for unread in padding]
        past = [row.length + len(row.slots) - count for row, count in zip(self._rows, read, strict=True)]
        blocks = [row.blocks[: -(-(row.length + len(row.slots)) // BLOCK)] for row in self._rows]
        return PagedInputs(
            tokens=batch.tokens,
            positions=batch.positions,
            padding=padding,
            repeated=repeated,
            past=past,
            blocks=blocks,
            seen=_seen(batch, padding),
            spare=self._sizes.padding(sum(read)),
            spare_block=self._spare_block,
        )

    def record(self, seconds: float) -> None:
        """Record the seconds of the forward of these inputs."""
        self._sizes.record(seconds)

    def _reserve(self, row: _Row, slots: int) -> None:
        """Take blocks for this many slots of a row."""
        if (missing := -(-slots // BLOCK) - len(row.blocks)) > 0:
            row.blocks += self._storage.take(missing)


def _nodes_of(batch: ForwardBatch) -> ForwardBatch:
    """The nodes of a forward, which may have pending tokens too."""
    return batch._replace(tokens=batch.tokens[:, -batch.nodes :], positions=batch.positions[:, -batch.nodes :], padding=())


def _together(before: ForwardBatch, after: ForwardBatch) -> ForwardBatch:
    """The nodes of two successive forwards of a round as one forward."""
    count = before.nodes + after.nodes
    assert after.mask is not None
    mask = torch.full((len(after.tokens), 1, count, count), -torch.inf)
    mask[:, :, : before.nodes, : before.nodes] = 0.0 if before.mask is None else before.mask
    mask[:, :, before.nodes :] = after.mask
    return after._replace(
        tokens=torch.cat([before.tokens, after.tokens], dim=1),
        positions=torch.cat([before.positions, after.positions], dim=1),
        mask=mask,
        nodes=count,
    )


def _seen(batch: ForwardBatch, padding: Sequence[int]) -> list[Bool[np.ndarray, "new new"]]:
    """What the new tokens see of each other (:class:`PagedInputs`)."""
    new, nodes = batch.tokens.shape[1], batch.nodes
    if batch.mask is None or _is_chain(among := batch.mask[:, 0].numpy() == 0.0):
        return []
    visible = np.tile(np.tri(new, dtype=np.bool_), (len(among), 1, 1))
    visible[:, new - nodes :, new - nodes :] = among
    return [row[unread:, unread:] for row, unread in zip(visible, padding, strict=True)]


def _is_chain(visible: Bool[np.ndarray, "row node node"]) -> bool:
    """Whether each node sees all nodes before it."""
    return bool((visible == np.tri(visible.shape[1], dtype=np.bool_)).all())
