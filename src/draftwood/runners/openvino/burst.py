"""A small draft model that drafts a burst of tokens in one call: an OpenVINO graph, and its keys and values.

In a model of one or two small layers the call costs more than its arithmetic. Here one call reads a token, chooses the next
one by scores and noise, reads that one, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.settings import Weights
from draftwood.runners.cache import cache_argument
from draftwood.runners.context import layer_count
from draftwood.runners.openvino.copies import traceable
from draftwood.runners.openvino.graph import (
    GraphMemory,
    can_keep,
    converting,
    memory_names,
    memory_sizes,
    traced,
)
from draftwood.runners.openvino.network import CompiledGraph
from draftwood.runners.openvino.store import stored_graphs

BURST = 4
"""Tokens chosen in one call."""
READ = 4
"""Tokens that every call reads first. A graph of fixed sizes is faster, and four tokens cost the bundled draft as much time
as one."""
_FIRST, _STEP = 128, 64  # slots of the smallest memory, and the divisor of all sizes


def slots_for(length: int) -> int:
    """Slots of a memory for this many tokens. There are few sizes, because a graph is prepared for each."""
    size = _FIRST
    while size < length:
        size += max(_STEP, size // 2 // _STEP * _STEP)
    return size


@final
class _Burst(nn.Module):
    """The model as a function of tensors: ``BURST`` forwards, each of the token chosen by the one before."""

    def __init__(self, model: Any, longest: int | None) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)
        self._last = None if longest is None else longest - 1
        self._known = int(model.get_input_embeddings().weight.shape[0])
        self._vocab = int(model.get_output_embeddings().weight.shape[0])
        self._only = {"logits_to_keep": 1} if can_keep(model) else {}

    def forward(
        self,
        tokens: Int[Tensor, "1 read"],
        positions: Int[Tensor, "1 read"],
        mask: Float[Tensor, "1 1 read slot"],
        noise: Float[Tensor, "burst vocab"],
        scale: Float[Tensor, "1"],
        *past: Tensor,
    ) -> tuple[Tensor, ...]:
        memory, last, row = GraphMemory(past), positions[:, -1:], mask[:, :, -1:]
        number = torch.arange(self._vocab, dtype=torch.float32)  # exact up to 2^24 tokens
        chosen, scores = [], []
        for index in range(BURST):
            memory = GraphMemory(memory.present)
            found = self.model(
                input_ids=tokens.clamp(max=self._known - 1),
                position_ids=positions if self._last is None else positions.clamp(max=self._last),
                attention_mask=mask,
                use_cache=True,
                **cache_argument(self.model, memory),
                **self._only,
            ).logits[:, -1]
            noisy = found * scale + noise[index]
            # Arg-max takes twenty times as long in the CPU plugin.
            is_best = noisy == noisy.amax(dim=-1, keepdim=True)
            tokens = torch.where(is_best, number, float(self._vocab)).amin(dim=-1, keepdim=True).long()
            chosen.append(tokens)
            scores.append(found)
            positions = last + (index + 1)
            row = torch.cat([row, torch.zeros_like(row[..., :1])], dim=-1)
            mask = row
        old = past[0].shape[2]
        return (torch.cat(chosen), torch.cat(scores), *(part[:, :, old:] for part in memory.present))


def burst_graph(model: Any, longest: int | None) -> Any:
    """The model and its choices, as an ``openvino.Model`` in float32; ``longest`` is the number of positions."""
    with converting(model):
        model = traceable(model)
        vocab, layers, old = int(model.get_output_embeddings().weight.shape[0]), layer_count(model.config), 3
        past, present = memory_names(layers)
        inputs = {
            "tokens": (torch.ones(1, READ, dtype=torch.long), [1, READ]),
            "positions": (torch.arange(READ).unsqueeze(0), [1, READ]),
            "mask": (torch.zeros(1, 1, READ, old + READ), [1, 1, READ, -1]),
            "noise": (torch.zeros(BURST, vocab), [BURST, vocab]),
            "scale": (torch.ones(1), [1]),
        }
        for name, (heads, width) in zip(past, memory_sizes(model, layers), strict=True):
            inputs[name] = torch.zeros(1, heads, old, width), [1, heads, -1, width]
        return traced(_Burst(model, longest), inputs, ["chosen", "scores", *present])


@final
class BurstMemory:
    """Keys and values of one text, in slots [0, ``used``).

    Args:
        graph: the graph with inputs for them.
        compiled: the compiled graph.
        past: names of these inputs.

    Attributes:
        used: number of slots in use; a lower value discards the last ones.
        slot_bytes: bytes of keys and values per slot.
        slots: the inputs, [1, head, slot, width] each; empty before the first :meth:`reserve`.
        mask: [1, 1, read, slot]: which slots, and which of each other, the first tokens of a call see.
    """

    def __init__(self, graph: Any, compiled: CompiledGraph, past: Sequence[str]) -> None:
        sizes = [graph.input(name).get_partial_shape() for name in past]
        self._compiled, self._past = compiled, past
        self._shapes = [(shape[1].get_length(), shape[3].get_length()) for shape in sizes]
        self.slot_bytes = sum(4 * heads * width for heads, width in self._shapes)
        self.mask: np.ndarray = np.empty(0, np.float32)
        self.clear()

    def new_slots(self, count: int) -> list[np.ndarray]:
        """Arrays of empty slots."""
        return [np.zeros((1, heads, count, width), np.float32) for heads, width in self._shapes]

    def clear(self) -> None:
        """Discard everything."""
        self.used = 0
        self.slots: list[np.ndarray] = []  # the size depends on the next text

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens."""
        size = slots_for(length)
        if self.slots and size <= self.slots[0].shape[2]:
            return
        grown = self.new_slots(size)
        for new, old in zip(grown, self.slots, strict=False):
            new[:, :, : self.used] = old[:, :, : self.used]
        self.slots = grown
        self.mask = np.empty((1, 1, READ, size + READ), np.float32)
        _put(self._compiled, ["mask", *self._past], [self.mask, *grown])

    def load(self, contents: Sequence[Float[np.ndarray, "1 head length width"]]) -> None:
        """Replace the contents by these keys and values."""
        self.clear()
        length = contents[0].shape[2]
        self.reserve(length + READ + BURST)
        for slots, part in zip(self.slots, contents, strict=True):
            slots[:, :, :length] = part
        self.used = length

    def append(self, fresh: Sequence[Float[np.ndarray, "1 head new width"]], padding: int) -> None:
        """Append the keys and values of a call, without its first ``padding`` tokens."""
        taken = fresh[0].shape[2] - padding
        for slots, part in zip(self.slots, fresh, strict=True):
            slots[:, :, self.used : self.used + taken] = part[:, :, padding:]
        self.used += taken

    def keep(self, slots: Sequence[int], end: int) -> None:
        """Keep these of the slots from ``end`` on, in this order."""
        kept = [*range(end, end + len(slots))]
        if list(slots) != kept:
            for part in self.slots:
                part[:, :, kept] = part[:, :, list(slots)]
        self.used = end + len(slots)

    def show(self, hidden: Sequence[int], padding: int) -> None:
        """Set the mask: a call sees all slots except ``hidden``; its first ``padding`` tokens are padding."""
        mask, size = self.mask[0, 0], self.slots[0].shape[2]
        mask.fill(-float("inf"))
        mask[:, : self.used] = 0.0
        if hidden:
            mask[:, list(hidden)] = -float("inf")
        for row in range(READ):
            mask[row, size + min(row, padding) : size + row + 1] = 0.0  # padding sees itself, or its softmax would be empty


@final
class BurstNetwork(nn.Module):
    """The compiled graph and its memory; it is a module, so hooks can observe its calls.

    A call reads up to ``READ`` tokens and then its own choices, in the slots after them. It copies only the new keys and
    values.

    Args:
        model: a causal language model, on the CPU.
        weights: unchanged, or quantized.
        longest: number of positions; None if unlimited.

    Raises:
        ModelError: the model cannot be traced or compiled.
    """

    def __init__(self, model: Any, weights: Weights, longest: int | None) -> None:
        super().__init__()
        part = f"burst-{BURST}-{READ}"
        [graph] = stored_graphs(model, {part: partial(burst_graph, longest=longest)}, weights)
        self._compiled = CompiledGraph(graph, model)
        past, present = memory_names(layer_count(model.config))
        self.memory = BurstMemory(graph, self._compiled, past)
        self.vocab = graph.input("noise").get_partial_shape()[1].get_length()
        self._tokens, self._positions = np.zeros((2, 1, READ), np.int64)
        self._no_noise = torch.zeros(BURST, self.vocab)
        self._scale = np.ones(1, np.float32)
        self._chosen = np.zeros((BURST, 1), np.int64)
        self._fresh = self.memory.new_slots(READ + BURST - 1)
        names = ("tokens", "positions", "scale", "chosen", *present)
        _put(self._compiled, names, (self._tokens, self._positions, self._scale, self._chosen, *self._fresh))

    def forward(
        self,
        input_ids: Int[Tensor, "1 new"],
        first: int,
        hidden: Sequence[int],
        noise: Float[Tensor, "burst vocab"] | None,
        scale: float,
    ) -> tuple[list[int], Float[Tensor, "burst vocab"]]:
        """Read up to ``READ`` tokens from position ``first`` on, then choose ``BURST`` tokens and read all but the last.

        All tokens see the slots except ``hidden``, and those of this call before them.

        Returns:
            The chosen tokens (each the arg-max of score times ``scale`` plus noise), and the scores.
        """
        new = input_ids.shape[1]
        padding = READ - new
        self.memory.reserve(self.memory.used + new + BURST - 1)
        self._tokens[0, padding:] = input_ids[0].numpy()
        self._positions[0, padding:] = range(first, first + new)
        self.memory.show(hidden, padding)
        self._scale[0] = scale
        scores = torch.empty(BURST, self.vocab)  # a new tensor, which later calls do not overwrite
        self._compiled.put(noise=self._no_noise if noise is None else noise, scores=scores)
        self._compiled.run()
        self.memory.append(self._fresh, padding)
        chosen: list[int] = self._chosen.ravel().tolist()
        return chosen, scores


def _put(compiled: CompiledGraph, names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    """Set inputs and outputs of a graph by name."""
    compiled.put(**{name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)})
