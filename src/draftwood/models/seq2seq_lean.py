"""The decoder of BART and its kin, written out: norms after each part (Marian, BART), or before it (mBART, Pegasus,
M2M100)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, layer_norm
from torch.nn.functional import embedding

from draftwood.errors import ModelError
from draftwood.models.cache import TreeCache
from draftwood.models.lean import Layer, ask, attend, feed, layer_of, norm_of, own, product, source_memory, turned
from draftwood.models.ledger import Step
from draftwood.models.seq2seq_decoder import Scored, layer_list, position_table
from draftwood.models.seq2seq_source import Encoded


@final
class LeanDecoder:
    """A decoder of BART's kind, run on its weights, which are copied in small models.

    Raises:
        ModelError, AttributeError: the decoder is made of other parts.
    """

    bare = True

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        self._layers = [layer_of(part) for part in layer_list(decoder)]
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
        self.cache = TreeCache(len(self._layers))
        self._bias = source.bias()
        with torch.inference_mode():
            self._memory = source_memory(self._layers, source.states)

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        index = torch.tensor(list(rows), device=self._table.device)
        self._bias = None if self._bias is None else self._bias.index_select(0, index)
        self._memory = [(keys.index_select(0, index), values.index_select(0, index)) for keys, values in self._memory]

    def read(self, step: Step, slot_positions: Callable[[], Int[Tensor, "row slot"]], keep: int) -> Scored:
        self.cache.start = step.start
        x = self._embed(step.tokens)
        if self._scale != 1.0:
            x = x * self._scale
        x = x + embedding(step.positions + self._offset, self._table)
        if self._first_norm is not None:
            x = layer_norm(x, *self._first_norm)
        run = self._after if self._final_norm is None else self._before
        for index, layer in enumerate(self._layers):
            x = run(index, layer, x, step.mask)
        if self._final_norm is not None:
            x = layer_norm(x, *self._final_norm)
        states = x[:, -keep:]
        return Scored(states, product(states, self._head))

    def _after(self, index: int, layer: Layer, x: Tensor, mask: Tensor | None) -> Tensor:
        """A layer with norms after each part."""
        x = layer_norm(x + self._text(index, layer, x, mask), *layer.own_norm)
        x = layer_norm(x + ask(layer, x, self._memory[index], self._bias), *layer.source_norm)
        return layer_norm(x + feed(layer, x), *layer.last_norm)

    def _before(self, index: int, layer: Layer, x: Tensor, mask: Tensor | None) -> Tensor:
        """A layer with norms before each part."""
        x = x + self._text(index, layer, layer_norm(x, *layer.own_norm), mask)
        x = x + ask(layer, layer_norm(x, *layer.source_norm), self._memory[index], self._bias)
        x = x + feed(layer, layer_norm(x, *layer.last_norm))
        return x

    def _text(self, index: int, layer: Layer, x: Tensor, mask: Tensor | None) -> Float[Tensor, "row new width"]:
        """Self-attention."""
        query, key, value = own(layer, x)
        keys, values = self.cache.update(key, value, index)
        return attend(query, keys, values, mask, layer.scales[0], layer.own_out)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second
