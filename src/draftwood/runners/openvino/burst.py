"""A small draft model that drafts a burst of tokens in one call: an OpenVINO graph, and its keys and values.

In a model of one or two small layers a call costs more than what is computed in it. Here one call reads a token, chooses the
next one by scores and noise, reads that, and so on, before control returns to the host.
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
from draftwood.runners.context import layer_count
from draftwood.runners.openvino.graph import (
    GraphMemory,
    can_keep,
    converting,
    memory_names,
    memory_sizes,
    plain,
    traced,
)
from draftwood.runners.openvino.network import CompiledGraph
from draftwood.runners.openvino.store import stored_graphs

BURST = 4
"""Tokens chosen in one call."""
READ = 4
"""Tokens that a call reads first, always as many: a graph whose sizes are known runs faster, and of the bundled draft a call
takes as long with four as with one."""
_FIRST, _STEP = 128, 64  # slots of the smallest memory, and what sizes are multiples of


def slots_for(length: int) -> int:
    """Slots of a memory with room for so many tokens: few sizes, as a graph prepares itself for each of them."""
    size = _FIRST
    while size < length:
        size += max(_STEP, size // 2 // _STEP * _STEP)
    return size


@final
class _Burst(nn.Module):
    """The model as a function of tensors: ``BURST`` forwards, each with the token that the one before chose."""

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
                past_key_values=memory,
                use_cache=True,
                **self._only,
            ).logits[:, -1]
            noisy = found * scale + noise[index]
            # An arg-max costs the CPU plugin twenty times this.
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
    """The model and its choices, as an ``openvino.Model`` in float32; positions from ``longest`` on do not exist."""
    with converting(model):
        if any(weight.dtype != torch.float32 for weight in model.parameters()):
            model = plain(model)
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
    """Keys and values of one text. Slots [0, ``used``) hold what was read.

    Args:
        graph: takes them as inputs, whose sizes it says.
        compiled: the same, compiled.
        past: the inputs' names.

    Attributes:
        used: slots in use; set lower, what stood behind is forgotten.
        slot_bytes: of keys and values, for each slot.
        slots: for each input, [1, head, slot, width]; nothing before the first :meth:`reserve`.
        mask: [1, 1, read, slot], what a call's first tokens see of the slots and of one another.
    """

    def __init__(self, graph: Any, compiled: CompiledGraph, past: Sequence[str]) -> None:
        sizes = [graph.input(name).get_partial_shape() for name in past]
        self._compiled, self._past = compiled, past
        self._shapes = [(shape[1].get_length(), shape[3].get_length()) for shape in sizes]
        self.slot_bytes = sum(4 * heads * width for heads, width in self._shapes)
        self.mask: np.ndarray = np.empty(0, np.float32)
        self.clear()

    def new_slots(self, count: int) -> list[np.ndarray]:
        """So many empty ones."""
        return [np.zeros((1, heads, count, width), np.float32) for heads, width in self._shapes]

    def clear(self) -> None:
        """Forget everything."""
        self.used = 0
        self.slots: list[np.ndarray] = []  # the size depends on the next text

    def reserve(self, length: int) -> None:
        """Room for so many tokens; what is there stays."""
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
        """Begin with these keys and values."""
        self.clear()
        length = contents[0].shape[2]
        self.reserve(length + READ + BURST)
        for slots, part in zip(self.slots, contents, strict=True):
            slots[:, :, :length] = part
        self.used = length

    def append(self, fresh: Sequence[Float[np.ndarray, "1 head new width"]], idle: int) -> None:
        """Take in what a call returned, without its first ``idle`` tokens."""
        taken = fresh[0].shape[2] - idle
        for slots, part in zip(self.slots, fresh, strict=True):
            slots[:, :, self.used : self.used + taken] = part[:, :, idle:]
        self.used += taken

    def keep(self, slots: Sequence[int], end: int) -> None:
        """Of the slots from ``end`` on keep these, in this order."""
        kept = [*range(end, end + len(slots))]
        if list(slots) != kept:
            for part in self.slots:
                part[:, :, kept] = part[:, :, list(slots)]
        self.used = end + len(slots)

    def show(self, hidden: Sequence[int], idle: int) -> None:
        """Let the tokens of a call see all slots but ``hidden``, and one another; the first ``idle`` of them are padding."""
        mask, size = self.mask[0, 0], self.slots[0].shape[2]
        mask.fill(-float("inf"))
        mask[:, : self.used] = 0.0
        if hidden:
            mask[:, list(hidden)] = -float("inf")
        for row in range(READ):
            mask[row, size + min(row, idle) : size + row + 1] = 0.0  # padding sees itself, so that no softmax is empty


@final
class BurstNetwork(nn.Module):
    """The compiled graph and its memory; a module, so that its calls can be watched.

    A call reads up to ``READ`` tokens and then its own choices, which take the slots after them. Nothing is copied but the
    new keys and values.

    Args:
        model: a causal language model, on the CPU.
        weights: as they are, or rounded.
        longest: positions from here on do not exist.

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
        self._silence = torch.zeros(BURST, self.vocab)
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
        """Read up to ``READ`` tokens, the first at position ``first``, all of which see the slots but ``hidden`` and one
        another; then choose and read ``BURST - 1`` tokens, and choose a last one.

        Returns:
            The chosen tokens, each the best of its scores times ``scale`` plus noise, and the scores.
        """
        new = input_ids.shape[1]
        idle = READ - new
        self.memory.reserve(self.memory.used + new + BURST - 1)
        self._tokens[0, idle:] = input_ids[0].numpy()
        self._positions[0, idle:] = range(first, first + new)
        self.memory.show(hidden, idle)
        self._scale[0] = scale
        scores = torch.empty(BURST, self.vocab)  # of its own: the next call leaves it alone
        self._compiled.put(noise=self._silence if noise is None else noise, scores=scores)
        self._compiled.run()
        self.memory.append(self._fresh, idle)
        chosen: list[int] = self._chosen.ravel().tolist()
        return chosen, scores


def _put(compiled: CompiledGraph, names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    """Set a graph's inputs and outputs, by name."""
    compiled.put(**{name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)})
