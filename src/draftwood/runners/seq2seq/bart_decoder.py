"""The decoder of BART and its kin, written out: norms after each part (Marian, BART), or before it (mBART, Pegasus,
M2M100)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, layer_norm
from torch.nn.functional import embedding
from transformers.cache_utils import Cache

from draftwood.runners.bart.layers import (
    EncoderLayer,
    ask,
    attend,
    ends_of,
    feed,
    layer_of,
    own,
    product,
    residual,
    source_memory,
    turned,
)
from draftwood.runners.cache import TreeCache
from draftwood.runners.seq2seq.patched_decoder import Scored, layer_list
from draftwood.runners.seq2seq.source import Encoded
from draftwood.runners.slots import ForwardBatch


@final
class BartDecoder:
    """A decoder of BART's kind, run on its weights, which are copied in small models.

    Raises:
        ModelError, AttributeError: the decoder is made of other parts.
    """

    bare, recent = True, False

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        self.dtype = model.dtype
        self.layers = [layer_of(part) for part in layer_list(decoder)]
        self._ends = ends_of(decoder)
        head = model.get_output_embeddings()
        bias = getattr(model, "final_logits_bias", None)
        self._head = turned(head.weight), _sum(head.bias, None if bias is None else bias[0])

    def start(self, source: Encoded) -> None:
        self.cache = TreeCache(len(self.layers))
        with torch.inference_mode():
            self.recall(source_memory(self.layers, source.states), source.bias())

    def recall(self, memory: list[tuple[Tensor, Tensor]], bias: Float[Tensor, "row 1 1 source"] | None) -> None:
        """Ask these keys and values of the sources from now on, [row, head, source, dim] of each layer."""
        self._memory, self._bias = memory, bias

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        index = torch.tensor(list(rows), device=self._ends.positions.device)
        self._bias = None if self._bias is None else self._bias.index_select(0, index)
        self._memory = [(keys.index_select(0, index), values.index_select(0, index)) for keys, values in self._memory]

    def read(self, step: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]], keep: int) -> Scored:
        self.cache.place(step)
        states = self.states(self.cache, step.tokens, step.positions, step.mask)[:, -keep:]
        return Scored(states, self.scores(states))

    def states(
        self,
        cache: Cache,
        tokens: Int[Tensor, "row new"],
        positions: Int[Tensor, "row new"],
        mask: Float[Tensor, "row 1 new slot"] | None,
    ) -> Float[Tensor, "row new width"]:
        """What the layers make of new tokens, whose keys and values go to ``cache``; the output embedding gets it."""
        ends = self._ends
        x = ends.tokens(tokens) + embedding(positions + ends.offset, ends.positions)
        if ends.first_norm is not None:
            x = layer_norm(x, *ends.first_norm)
        first = ends.final_norm is not None
        for index, layer in enumerate(self.layers):
            inner, memory = layer.inner, self._memory[index]
            x = residual(x, inner.own_norm, partial(_itself, inner, cache, index, mask), first=first)
            x = residual(x, layer.source_norm, partial(ask, layer, memory, self._bias), first=first)
            x = residual(x, inner.last_norm, partial(feed, inner), first=first)
        return x if ends.final_norm is None else layer_norm(x, *ends.final_norm)

    def scores(self, states: Float[Tensor, "row new width"]) -> Float[Tensor, "row new vocab"]:
        """The output embedding."""
        return product(states, self._head)


def _itself(layer: EncoderLayer, cache: Cache, index: int, mask: Tensor | None, x: Tensor) -> Tensor:
    """Self-attention, of which ``cache`` keeps the keys and values."""
    query, key, value = own(layer, x)
    keys, values = cache.update(key, value, index)
    return attend(query, keys, values, mask, layer.scale, layer.own_out)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second
