"""An OpenVINO state of keys and values that only grows: unused slots are masked, and rarely removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from draftwood.runners.forward import ForwardBatch
from draftwood.runners.openvino.graph import openvino
from draftwood.runners.rows import remaining_rows

_PATIENCE = 100.0
"""Dead slots are removed once their square exceeds this many times the slots in use. Each new token pays for every dead
slot. A removal pays for every slot in use and, in small models, mostly a fixed cost. The bundled pair decodes about as fast
with 20 to 1000. With few dead slots a round without a draft costs as much as plain decoding, which helps the controller to
compare them."""
_ROOM = 256  # initial slots
_SPARE, _WEIGHTS = 6, 5e6
"""A forward of another number of tokens than the last one prepares every layer again, in about 0.1 ms per layer. One more
token takes as long with about five million weights per layer (measured on models of 1 M and 11 M parameters)."""


def spare_tokens(model: Any, layers: int) -> int:
    """Most padding tokens of a forward that are cheaper than a change of its size."""
    return min(_SPARE, int(_WEIGHTS * layers / sum(weight.numel() for weight in model.parameters())))


class Inputs(NamedTuple):
    """The input of one forward of a graph."""

    tokens: Int[Tensor, "row new"]
    positions: Int[Tensor, "row new"]
    mask: Float[Tensor, "row 1 new slot"]
    rows: list[int]
    """The rows of the state that the forward continues."""


@final
class GrowingMemory:
    """Keys and values in the state of an OpenVINO request, to which every forward appends.

    Attention does not depend on the order of slots, only on the mask. So committed tokens stay in the slots where they were
    read, and rejected ones stay too, hidden from all later tokens.

    Args:
        request: the ``openvino.InferRequest`` with this state.
        spare: most padding tokens of a forward, over all rows (:func:`spare_tokens`).
    """

    def __init__(self, request: Any, spare: int = 0) -> None:
        self._request = request
        self._spare = spare
        self.clear()

    def clear(self) -> None:
        """Remove all rows and the state."""
        self._last = self._padded = 0  # tokens of the last forward; padding tokens since the last one without any
        self._rows: list[int] = []  # the row of the present state that each row continues
        # Additive, over all slots: first those of earlier rounds, then unused ones, which are not hidden.
        self._bias: Float[np.ndarray, "row room"] = np.zeros((0, _ROOM), np.float32)
        self._slots = 0  # number of slots of earlier rounds
        self._live: list[int] = []  # per row, how many of them are not hidden
        self._new = 0  # number of slots of this round
        self._token_slots: list[int] = []  # those of them without padding
        self._request.reset_state()

    def add(self, rows: int) -> None:
        """Append rows, which see none of the slots in use: in the state they begin as copies of its first row."""
        bias = np.zeros((rows, self._bias.shape[1]), np.float32)
        bias[:, : self._slots] = -np.inf
        self._bias = np.concatenate([self._bias, bias])
        self._live += [0] * rows
        self._rows += [0] * rows
        if not self._slots:  # an empty state accepts any number of rows
            self._rows = list(range(len(self._live)))

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows, from the next forward on; the others keep their order."""
        stay = remaining_rows(len(self._live), rows)
        if not stay:
            self.clear()
            return
        self._rows = [self._rows[r] for r in stay] if self._slots else list(range(len(stay)))
        self._live = [self._live[r] for r in stay]
        self._bias = self._bias[stay]

    def inputs(self, batch: ForwardBatch) -> Inputs:
        """The input of the graph, with padding tokens first if they save time, and masks over all slots of the state.

        Assumes that the forward is then made.
        """
        padding = self._padding_for(*batch.tokens.shape)
        mask, tokens, positions = self._mask(batch, padding), batch.tokens, batch.positions
        if padding:
            tokens, positions = pad(tokens, (padding, 0)), pad(positions, (padding, 0))
        rows, self._rows = self._rows, list(range(len(self._rows)))
        return Inputs(tokens, positions, mask, rows)

    def _mask(self, batch: ForwardBatch, padding: int) -> Float[Tensor, "row 1 new slot"]:
        """The mask over all slots of the state, to which the slots of the batch are added.

        The mask of the batch ends with the slots of this round. Of earlier slots, a new token sees all that are not hidden.
        A batch without a mask has a single token, the first of the round.
        """
        rows, new = batch.tokens.shape
        first, old = self._new + padding, self._slots
        self._token_slots += range(first, first + new)
        self._new = first + new
        if batch.mask is None and not padding:
            self._make_room(1)
            return torch.from_numpy(self._bias[:, None, None, : old + 1])
        out = np.full((rows, 1, padding + new, old + self._new), -np.inf, np.float32)
        out[..., :old] = self._bias[:, None, None, :old]
        visible = 0.0 if batch.mask is None else batch.mask.numpy()[..., batch.mask.shape[3] - len(self._token_slots) :]
        if len(self._token_slots) == self._new:
            out[..., old:] = visible
        else:
            out[:, :, padding:, [old + slot for slot in self._token_slots]] = visible
            out[:, :, range(padding), range(old + first - padding, old + first)] = 0.0  # or their softmax would be empty
        return torch.from_numpy(out)

    def _padding_for(self, rows: int, new: int) -> int:
        """Padding tokens per row. In successive forwards they cost at most as much as one change of size."""
        padding = self._last - new
        self._padded += padding * rows
        if padding <= 0 or self._padded > self._spare:
            self._last, self._padded = new, 0
            return 0
        return padding

    def compact(self, source: Sequence[Sequence[int]], target: Sequence[int]) -> None:
        """End a round: keep the slots in ``source``, numbered as in a cache without rejected tokens.

        Args:
            source: per row, slots of this round.
            target: per row, the length of the text before it; the round's slots begin at the longest.
        """
        first, old = max(target), self._slots
        self._make_room(self._new)
        self._slots += self._new
        for row, slots in enumerate(source):
            if len(slots) < self._new:
                bias = self._bias[row, old : self._slots]
                bias[:] = -np.inf
                bias[[self._token_slots[slot - first] for slot in slots]] = 0.0
        self._live = [live + len(slots) for live, slots in zip(self._live, source, strict=True)]
        self._new, self._token_slots = 0, []
        self._remove_dead()

    def _remove_dead(self) -> None:
        """Remove dead slots if there are too many."""
        most = max(self._live)
        dead = self._slots - most
        if dead**2 > _PATIENCE * most:
            self._clear(most)

    def _make_room(self, slots: int) -> None:
        """Make room for this many more slots."""
        rows, room = self._bias.shape
        if self._slots + slots > room:
            more = np.zeros((rows, max(room, slots)), np.float32)
            self._bias = np.concatenate([self._bias, more], axis=1)

    def _clear(self, most: int) -> None:
        """Move the slots in use to the front, in their order; rows with fewer than ``most`` keep some hidden ones."""
        bias = self._bias[:, : self._slots]
        order = (-bias).argsort(axis=1, kind="stable")[:, :most]
        bias[:, :most] = np.take_along_axis(bias, order, axis=1)
        self._bias[:, most:], self._slots = 0.0, most
        kept, buffer = np.empty((0, 0, 0, 0)), None
        for part in self._request.query_state():
            state = part.state.data
            shape = (len(order), state.shape[1], most, state.shape[3])
            if kept.shape != shape:  # most layers have the same shape and share one buffer
                kept = np.empty(shape, state.dtype)
                buffer = openvino().Tensor(kept, shared_memory=True)
            for row, slots in enumerate(order):
                np.take(state[self._rows[row]], slots, axis=1, out=kept[row], mode="clip")  # "raise" would write twice
            part.state = buffer  # a copy
        self._rows = list(range(len(order)))
