"""A direct implementation of BART's decoder: norms after each part (Marian, BART) or before it (mBART, Pegasus, M2M100)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, layer_norm

from draftwood.runners.bart import (
    BartEmbedding,
    Layer,
    by_layer,
    layer_of,
    norm_of,
    padding_bias,
    product,
    source_memory,
    transposed,
)
from draftwood.runners.cache import TreeCache
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.rows import Sources
from draftwood.runners.seq2seq.patched_decoder import layer_list


@final
class BartDecoder:
    """A decoder like BART's, on the model's weights, which are copied in small models, and its encoder.

    Raises:
        ModelError, AttributeError, LookupError: the decoder has other parts.
    """

    bare = True

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        self.dtype = model.dtype
        self._encoder, self._layers = model.get_encoder(), [layer_of(part) for part in layer_list(decoder)]
        self._embedding = BartEmbedding(decoder)
        self._final_norm = norm_of(decoder.layer_norm) if hasattr(decoder, "layer_norm") else None
        head, bias = model.get_output_embeddings(), getattr(model, "final_logits_bias", None)
        biases = [one for one in (head.bias, None if bias is None else bias[0]) if one is not None]
        self._head = transposed(head.weight), torch.stack(biases).sum(0) if biases else None
        self.cache = TreeCache(len(self._layers))

    def encode(self, tokens: Tensor, mask: Tensor) -> Sources:
        states = self._encoder(input_ids=tokens, attention_mask=mask.long())[0]
        return Sources(mask, memory=source_memory(self._layers, states))

    def attach(self, sources: Sources, kept: Sequence[int] | None = None) -> None:
        """Use these sources; they are the rows ``kept`` of those before, if given."""
        assert sources.memory is not None
        self._memory, self._bias = by_layer(sources.memory), padding_bias(sources.mask, self.dtype)

    def read(self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]]) -> ForwardOutput:
        self.cache.place(batch)
        x, norm_first = self._embedding.read(batch.tokens, batch.positions), self._final_norm is not None
        for index, layer in enumerate(self._layers):
            attention = partial(self._attend_text, index, layer, batch.mask)
            x = layer.read(x, attention, self._memory[index], self._bias, norm_first=norm_first)
        states = x if self._final_norm is None else layer_norm(x, *self._final_norm)
        return ForwardOutput(product(states[:, -batch.keep :], self._head))

    def _attend_text(self, index: int, layer: Layer, mask: Tensor | None, x: Tensor) -> Float[Tensor, "row new width"]:
        """Self-attention to the text so far."""
        query, key, value = layer.own.project(x)
        keys, values = self.cache.update(key, value, index)
        return layer.own.attend(query, keys, values, mask)
