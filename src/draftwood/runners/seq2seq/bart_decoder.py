"""A direct implementation of BART's decoder: norms after each part (Marian, BART) or before it (mBART, Pegasus, M2M100)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from jaxtyping import Int
from torch import Tensor, layer_norm
from torch.nn.functional import embedding

from draftwood.core.errors import ModelError
from draftwood.runners.bart import (
    BartEmbedding,
    BartEncoder,
    Layer,
    attend,
    by_layer,
    final_norm_of,
    layer_of,
    padding_bias,
    product,
    project_qkv,
    read_layer,
    source_attention_of,
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
        self._layers = [layer_of(part) for part in layer_list(decoder)]
        for layer in self._layers:
            source_attention_of(layer)
        self._embedding = BartEmbedding(decoder)
        self._final_norm = final_norm_of(decoder)
        head = model.get_output_embeddings()
        bias = getattr(model, "final_logits_bias", None)
        self._head = transposed(head.weight), _sum(head.bias, None if bias is None else bias[0])
        self.cache = TreeCache(len(self._layers))
        self._encode = encoder_of(model)

    def encode(self, tokens: Tensor, mask: Tensor) -> Sources:
        return Sources(mask, memory=source_memory(self._layers, self._encode(tokens, mask)))

    def attach(self, sources: Sources, kept: Sequence[int] | None = None) -> None:
        """Use these sources; they are the rows ``kept`` of those before, if given."""
        assert sources.memory is not None
        self._memory, self._bias = by_layer(sources.memory), padding_bias(sources.mask, self.dtype)

    def read(self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]]) -> ForwardOutput:
        self.cache.place(batch)
        positions = embedding(batch.positions + self._embedding.offset, self._embedding.table)
        x = self._embedding.normed(self._embedding.words(batch.tokens) + positions)
        norm_first = self._final_norm is not None
        for index, layer in enumerate(self._layers):
            attention = partial(self._attend_text, index, layer, batch.mask)
            x = read_layer(layer, x, attention, self._memory[index], self._bias, norm_first=norm_first)
        states = x if self._final_norm is None else layer_norm(x, *self._final_norm)
        return ForwardOutput(product(states[:, -batch.keep :], self._head))

    def _attend_text(self, index: int, layer: Layer, mask: Tensor | None, x: Tensor) -> Tensor:
        """Self-attention to the text so far."""
        query, key, value = project_qkv(layer, x)
        keys, values = self.cache.update(key, value, index)
        return attend(query, keys, values, mask, layer.scale, layer.own_out)


def encoder_of(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The encoder as a function of padded sources and their mask; written out if its parts are those of BART."""
    encoder = model.get_encoder()
    try:
        return BartEncoder(encoder).read
    except (ModelError, AttributeError):
        return lambda tokens, mask: encoder(input_ids=tokens, attention_mask=mask.long())[0]


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second
