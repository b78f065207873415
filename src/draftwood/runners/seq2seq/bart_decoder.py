"""The decoder of BART and its kin, written out: norms after each part (Marian, BART), or before it (mBART, Pegasus,
M2M100)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, layer_norm
from torch.nn.functional import embedding
from transformers.cache_utils import Cache

from draftwood.core.errors import ModelError
from draftwood.runners.bart.layers import (
    Layer,
    ask,
    attend,
    feed,
    layer_of,
    norm_of,
    own,
    position_table,
    product,
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
        self._embed = decoder.embed_tokens
        if (table := position_table(decoder)) is None:
            raise ModelError(f"the decoder of {model.config.model_type!r} has no table of positions")
        self._table, self._offset = table
        self._scale = float(getattr(decoder, "embed_scale", 1.0))
        self._first_norm = norm_of(decoder.layernorm_embedding) if hasattr(decoder, "layernorm_embedding") else None
        self._final_norm = norm_of(decoder.layer_norm) if hasattr(decoder, "layer_norm") else None
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
        index = torch.tensor(list(rows), device=self._table.device)
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
        x: Tensor = self._embed(tokens)
        if self._scale != 1.0:
            x = x * self._scale
        x = x + embedding(positions + self._offset, self._table)
        if self._first_norm is not None:
            x = layer_norm(x, *self._first_norm)
        run = self._after if self._final_norm is None else self._before
        for index, layer in enumerate(self.layers):
            x = run(cache, index, layer, x, mask)
        return x if self._final_norm is None else layer_norm(x, *self._final_norm)

    def scores(self, states: Float[Tensor, "row new width"]) -> Float[Tensor, "row new vocab"]:
        """The output embedding."""
        return product(states, self._head)

    def _after(self, cache: Cache, index: int, layer: Layer, x: Tensor, mask: Tensor | None) -> Tensor:
        """A layer with norms after each part."""
        x = layer_norm(x + self._text(cache, index, layer, x, mask), *layer.own_norm)
        x = layer_norm(x + ask(layer, x, self._memory[index], self._bias), *layer.source_norm)
        return layer_norm(x + feed(layer, x), *layer.last_norm)

    def _before(self, cache: Cache, index: int, layer: Layer, x: Tensor, mask: Tensor | None) -> Tensor:
        """A layer with norms before each part."""
        x = x + self._text(cache, index, layer, layer_norm(x, *layer.own_norm), mask)
        x = x + ask(layer, layer_norm(x, *layer.source_norm), self._memory[index], self._bias)
        x = x + feed(layer, layer_norm(x, *layer.last_norm))
        return x

    def _text(self, cache: Cache, index: int, layer: Layer, x: Tensor, mask: Tensor | None) -> Tensor:
        """Self-attention."""
        query, key, value = own(layer, x)
        keys, values = cache.update(key, value, index)
        return attend(query, keys, values, mask, layer.scales[0], layer.own_out)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second
