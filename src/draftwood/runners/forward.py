"""The forwards of a round: their inputs and outputs, and the slots they fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor


class ForwardBatch(NamedTuple):
    """The input of one forward: pending tokens, then nodes. Their slots begin at ``start``, in the rows from ``row`` on."""

    tokens: Int[Tensor, "row new"]
    positions: Int[Tensor, "row new"]
    mask: Float[Tensor, "row 1 new slot"] | None
    """Additive, over all slots in use; None if every new token sees all of them."""
    sliding: Float[Tensor, "row 1 new slot"] | None
    """The mask of layers with sliding attention, if others have full attention."""
    row: int
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
        device: device of ``end`` and positions.
        row: number of the first row in the cache.

    Attributes:
        cached, pending, row: as given.
        ends: positions of the roots.
        end: the same, as one number if all are equal, else [row, 1].
        even: every row owns all slots in use and none is padded, as always with a single row.
        nodes: number of nodes of this round so far.
        loaded: number of pending columns that are in the cache.
        positions: positions of the tokens, for each forward of this round.
    """

    def __init__(self, cached: Sequence[int], pending: Sequence[list[int]], device: torch.device, row: int = 0) -> None:
        self.cached, self.pending, self.row, self._device = cached, pending, row, device
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

    def slot_positions(self) -> Int[Tensor, "row slot"]:
        """Text positions of all slots in use; arbitrary for slots that a row does not own."""
        base = torch.arange(self.base, device=self._device).expand(len(self.pending), -1)
        return torch.cat([base, *self.positions], dim=1)

    def add(self, positions: Int[Tensor, "row new"], pending: int, nodes: int) -> int:
        """Append the slots of a forward, with these numbers of pending columns and nodes; returns the first one."""
        start = self.base + self.loaded + self.nodes
        self.loaded += pending
        self.nodes += nodes
        self.positions.append(positions)
        return start
