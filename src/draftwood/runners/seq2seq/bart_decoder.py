"""A direct implementation of BART's decoder: norms after each part (Marian, BART) or before it (mBART, Pegasus, M2M100)."""

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
    BartEmbedding,
    Layer,
    attend,
    by_layer,
    final_norm_of,
    layer_of,
    product,
    project_qkv,
    read_layer,
    source_attention_of,
    source_memory,
    transposed,
)
from draftwood.runners.cache import TreeCache
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.seq2seq.patched_decoder import layer_list
from draftwood.runners.seq2seq.source import Encoded


@final
class BartDecoder:
    """A decoder like BART's, on the model's weights, which are copied in small models.

    Raises:
        ModelError, AttributeError, LookupError: the decoder has other parts.
    """

    bare, recent = True, False

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        self.dtype = model.dtype
        self.layers = [layer_of(part) for part in layer_list(decoder)]
        for layer in self.layers:
            source_attention_of(layer)
        self._embedding = BartEmbedding(decoder)
        self._final_norm = final_norm_of(decoder)
        head = model.get_output_embeddings()
        bias = getattr(model, "final_logits_bias", None)
        self._head = transposed(head.weight), _sum(head.bias, None if bias is None else bias[0])
        self.cache = TreeCache(len(self.layers))
        self._source: Encoded | None = None

    def clear(self) -> None:
        self._source = None

    def add(self, source: Encoded) -> None:
        with torch.inference_mode():
            new = source._replace(memory=source_memory(self.layers, source.states))
            self._keep(new if self._source is None else self._source.joined(new))

    def drop(self, rows: Sequence[int]) -> None:
        assert self._source is not None
        self._keep(self._source.without(rows))

    def _keep(self, source: Encoded) -> None:
        assert source.memory is not None
        self._source = source
        self.set_source(by_layer(source.memory.unbind(1)), source.bias())

    def set_source(self, memory: list[tuple[Tensor, Tensor]], bias: Float[Tensor, "row 1 1 source"] | None) -> None:
        """Set the keys and values of the sources, [row, head, source, dim] of each layer."""
        self._memory, self._bias = memory, bias

    def read(self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]]) -> ForwardOutput:
        self.cache.place(batch)
        states = self.states(self.cache, batch.tokens, batch.positions, batch.mask)
        return ForwardOutput(self.scores(states[:, -batch.keep :]))

    def states(
        self,
        cache: Cache,
        tokens: Int[Tensor, "row new"],
        positions: Int[Tensor, "row new"],
        mask: Float[Tensor, "row 1 new slot"] | None,
    ) -> Float[Tensor, "row new width"]:
        """The input of the output embedding for new tokens, whose keys and values are added to ``cache``."""
        words = self._embedding.words(tokens)
        x = self._embedding.normed(words + embedding(positions + self._embedding.offset, self._embedding.table))
        norm_first = self._final_norm is not None
        for index, layer in enumerate(self.layers):
            attention = partial(_attend_text, cache, index, layer, mask)
            x = read_layer(layer, x, attention, self._memory[index], self._bias, norm_first=norm_first)
        return x if self._final_norm is None else layer_norm(x, *self._final_norm)

    def scores(self, states: Float[Tensor, "row new width"]) -> Float[Tensor, "row new vocab"]:
        """Scores by the output embedding."""
        return product(states, self._head)


def _attend_text(cache: Cache, index: int, layer: Layer, mask: Tensor | None, x: Tensor) -> Tensor:
    """Self-attention to the text so far."""
    query, key, value = project_qkv(layer, x)
    keys, values = cache.update(key, value, index)
    return attend(query, keys, values, mask, layer.scale, layer.own_out)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second
