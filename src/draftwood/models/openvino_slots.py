"""Which slots of a memory that only grows are still of use: the others are masked, and seldom cleared away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.models.openvino_graph import shared

_PATIENCE = 40.0
"""A forward pays for every dead slot at every new token, clearing away for every slot in use, about 27 times as much
(measured on models of 1 M and 11 M parameters). Where two of three new slots die, both together cost least if the dead ones
are cleared away once their square is 40 times the slots in use."""


@final
class GrowingMemory:
    """Keys and values in an OpenVINO request's state. Every forward appends to them, and nothing is ever moved.

    To attention the order of slots is nothing; only what is hidden counts. So the tokens of the text stay where they were
    read, and what was rejected stays too, hidden from all that comes.

    Args:
        request: an ``openvino.InferRequest`` whose state this is.
        rows: how many texts.
    """

    def __init__(self, request: Any, rows: int) -> None:
        self._request = request
        self._rows = list(range(rows))  # of the state as it is, those that go on
        self._old: Float[np.ndarray, "row slot"] = np.zeros((rows, 0), np.float32)  # additive, of earlier rounds' slots
        self._live = [0] * rows  # how many of them are not hidden
        self._new = 0  # slots of this round
        request.reset_state()

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, from the next forward on."""
        whole = self._old.shape[1] > 0  # an empty state takes as many rows as come
        self._rows = [self._rows[r] for r in rows] if whole else list(range(len(rows)))
        self._live = [self._live[r] for r in rows]
        self._old = self._old[list(rows)]

    def next_rows(self) -> list[int]:
        """The rows of the state that the next forward goes on with; it is then taken as done."""
        rows, self._rows = self._rows, list(range(len(self._rows)))
        return rows

    def mask(self, mask: Float[Tensor, "row 1 new compact"]) -> Float[Tensor, "row 1 new slot"]:
        """The mask over all slots of the state, from one over the slots of a memory that keeps the text only, or over those
        of this round.

        All of them end with the slots of this round; of those before, a new token sees whatever is not hidden.
        """
        new, old = mask.shape[2], self._old.shape[1]
        self._new += new
        out = np.empty((len(mask), 1, new, old + self._new), np.float32)
        out[..., :old] = self._old[:, None, None]
        out[..., old:] = mask.numpy()[..., mask.shape[3] - self._new :]
        return torch.from_numpy(out)

    def move(self, source: Sequence[Sequence[int]], target: Sequence[int]) -> None:
        """End a round: of its slots those in ``source`` stay, numbered as in a memory that keeps the text only.

        Args:
            source: per row, slots of this round.
            target: per row, the length of the text before it; the longest is where the round's slots begin.
        """
        first = max(target)
        hidden = np.full((len(source), self._new), -np.inf, np.float32)
        for row, slots in zip(hidden, source, strict=True):
            row[[slot - first for slot in slots]] = 0.0
        self._old = np.concatenate([self._old, hidden], axis=1)
        self._live = [live + len(slots) for live, slots in zip(self._live, source, strict=True)]
        self._new = 0
        most = max(self._live)
        dead = self._old.shape[1] - most
        if dead**2 > _PATIENCE * most:
            self._clear(most)

    def _clear(self, most: int) -> None:
        """Bring the slots in use to the front and forget the others. Reads and writes the whole state once."""
        # Slots in use come first, in their order; a row with fewer of them keeps some hidden ones.
        places = (-self._old).argsort(axis=1, kind="stable")[:, :most]
        self._old = np.take_along_axis(self._old, places, axis=1)
        kept, given = np.empty((0, 0, 0, 0), np.float32), None
        for part in self._request.query_state():
            state = part.state.data
            shape = (len(places), state.shape[1], most, state.shape[3])
            if kept.shape != shape:  # layers are mostly alike: one piece of memory serves them all
                kept = np.empty(shape, np.float32)
                given = shared(torch.from_numpy(kept))
            for row, places_of_row in enumerate(places):
                np.take(state[row], places_of_row, axis=1, out=kept[row], mode="clip")  # "raise" would write twice
            part.state = given  # is copied
