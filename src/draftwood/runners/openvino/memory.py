"""Which slots of a memory that only grows are still in use: the others are masked, and seldom cleared away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from draftwood.runners.openvino.graph import memory_names, shared
from draftwood.runners.rows import staying
from draftwood.runners.slots import ForwardBatch

_PATIENCE = 100.0
"""Dead slots are cleared away once their square is so many times the slots in use. A forward pays for every dead slot at
every new token, clearing away for every slot in use, and in small models most of all for itself. Decoding the bundled pair
goes about as fast with anything from 20 to 1000; with few dead slots a round without a draft takes what it takes where
nothing is ever drafted, and so the controller knows better what a draft has to beat."""
_ROOM = 256  # slots at first
_SPARE, _WEIGHTS = 6, 5e6
"""A forward of another number of tokens than the last one prepares every layer anew, which takes about 0.1 ms each: as long
as one more token does with some five million weights to a layer (measured on models of 1 M and 11 M parameters)."""


def spare_tokens(model: Any, layers: int) -> int:
    """How many padding tokens a forward may read so that it is of the same size as the last one, and so quicker."""
    return min(_SPARE, int(_WEIGHTS * layers / sum(weight.numel() for weight in model.parameters())))


class Inputs(NamedTuple):
    """What one forward of a graph reads."""

    tokens: Int[Tensor, "row new"]
    positions: Int[Tensor, "row new"]
    mask: Float[Tensor, "row 1 new slot"]


@final
class GrowingMemory:
    """Keys and values in an OpenVINO request's state. Every forward appends to them, and nothing is ever moved.

    To attention the order of slots is nothing; only what is hidden counts. So the tokens of the text stay where they were
    read, and what was rejected stays too, hidden from all that comes.

    Args:
        request: an ``openvino.InferRequest`` whose state this is.
        spare: padding tokens that a forward may read (:func:`spare_tokens`), of all rows together.
    """

    def __init__(self, request: Any, spare: int = 0) -> None:
        self._request = request
        self._spare = spare
        self.clear()

    def clear(self) -> None:
        """All rows leave, and the state with them."""
        self._last = self._idled = 0  # tokens of the last forward; padding tokens since one without
        self._rows: list[int] = []  # the row of the state as it is that each row goes on from
        # Additive, of all slots: of earlier rounds' ones first, and with room for more, in which nothing is hidden.
        self._line: Float[np.ndarray, "row room"] = np.zeros((0, _ROOM), np.float32)
        self._slots = 0  # of earlier rounds
        self._live: list[int] = []  # how many of them are not hidden
        self._new = 0  # slots of this round
        self._places: list[int] = []  # of them, those of tokens that are not padding
        self._request.reset_state()

    def add(self, rows: int) -> None:
        """New rows, to which all slots in use are hidden: in the state they begin as copies of its first row."""
        line = np.zeros((rows, self._line.shape[1]), np.float32)
        line[:, : self._slots] = -np.inf
        self._line = np.concatenate([self._line, line])
        self._live += [0] * rows
        self._rows += [0] * rows
        if not self._slots:  # an empty state takes as many rows as come
            self._rows = list(range(len(self._live)))

    def drop(self, rows: Sequence[int]) -> None:
        """These rows leave, from the next forward on; the others keep their order."""
        stay = staying(len(self._live), rows)
        if not stay:
            self.clear()
            return
        self._rows = [self._rows[r] for r in stay] if self._slots else list(range(len(stay)))
        self._live = [self._live[r] for r in stay]
        self._line = self._line[stay]

    def next_rows(self) -> list[int]:
        """The rows of the state that the next forward goes on with; it is then taken as done."""
        rows, self._rows = self._rows, list(range(len(self._rows)))
        return rows

    def inputs(self, batch: ForwardBatch) -> Inputs:
        """What the graph reads: perhaps padding tokens first, and a mask over all slots of the state.

        The mask of the batch is over the slots of a memory that keeps the text only, or over those of this round, and ends
        with these in either case; of those before, a new token sees whatever is not hidden. Without one it is the first of
        this round, and there is nothing else.
        """
        rows, new = batch.tokens.shape
        idle = self._idle_for(rows, new)
        first, old = self._new + idle, self._slots
        self._places += range(first, first + new)
        self._new = first + new
        if batch.mask is None and not idle:
            self._make_room(1)
            return Inputs(batch.tokens, batch.positions, torch.from_numpy(self._line[:, None, None, : old + 1]))
        out = np.full((rows, 1, idle + new, old + self._new), -np.inf, np.float32)
        out[..., :old] = self._line[:, None, None, :old]
        visible = 0.0 if batch.mask is None else batch.mask.numpy()[..., batch.mask.shape[3] - len(self._places) :]
        if len(self._places) == self._new:
            out[..., old:] = visible
        else:
            out[:, :, idle:, [old + place for place in self._places]] = visible
            out[:, :, range(idle), range(old + first - idle, old + first)] = 0.0  # so that no softmax is empty
        if not idle:
            return Inputs(batch.tokens, batch.positions, torch.from_numpy(out))
        return Inputs(pad(batch.tokens, (idle, 0)), pad(batch.positions, (idle, 0)), torch.from_numpy(out))

    def _idle_for(self, rows: int, new: int) -> int:
        """Padding tokens per row; not more of them, one forward after the other, than another size would cost once."""
        idle = self._last - new
        self._idled += idle * rows
        if idle <= 0 or self._idled > self._spare:
            self._last, self._idled = new, 0
            return 0
        return idle

    def contents(self) -> list[Float[np.ndarray, "row head token width"]]:
        """Keys and values of this round's tokens, of every layer in turn; copies."""
        parts = {part.name: part.state.data for part in self._request.query_state()}
        names = memory_names(len(parts) // 2)
        return [parts[old + new].take(self._places, axis=2) for old, new in zip(*names, strict=True)]

    def compact(self, source: Sequence[Sequence[int]], target: Sequence[int]) -> None:
        """End a round: of its slots those in ``source`` stay, numbered as in a memory that keeps the text only.

        Args:
            source: per row, slots of this round.
            target: per row, the length of the text before it; the longest is where the round's slots begin.
        """
        first, old = max(target), self._slots
        self._make_room(self._new)
        self._slots += self._new
        for row, slots in enumerate(source):
            if len(slots) < self._new:
                line = self._line[row, old : self._slots]
                line[:] = -np.inf
                line[[self._places[slot - first] for slot in slots]] = 0.0
        self._live = [live + len(slots) for live, slots in zip(self._live, source, strict=True)]
        self._new, self._places = 0, []
        most = max(self._live)
        dead = self._slots - most
        if dead**2 > _PATIENCE * most:
            self._clear(most)

    def _make_room(self, slots: int) -> None:
        """For so many more."""
        rows, room = self._line.shape
        if self._slots + slots > room:
            self._line = np.concatenate([self._line, np.zeros((rows, max(room, slots)), np.float32)], axis=1)

    def _clear(self, most: int) -> None:
        """Bring the slots in use to the front and forget the others. Reads and writes the whole state once."""
        # Slots in use come first, in their order; a row with fewer of them keeps some hidden ones.
        line = self._line[:, : self._slots]
        places = (-line).argsort(axis=1, kind="stable")[:, :most]
        line[:, :most] = np.take_along_axis(line, places, axis=1)
        self._line[:, most:], self._slots = 0.0, most
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
