"""A direct implementation of BART's decoder: norms after each part (Marian, BART) or before it (mBART, Pegasus, M2M100)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from jaxtyping import Float, Int
from torch import Tensor, layer_norm
from torch.nn.functional import embedding

from draftwood.core.errors import ModelError
from draftwood.runners.bart.encoder import BartEncoder
from draftwood.runners.bart.layers import (
    BartEmbedding,
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
from draftwood.runners.seq2seq.patched_decoder import layer_list
from draftwood.runners.sources import Sources


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
        self._encode = encoder_of(model)

    def encode(self, tokens: Tensor, mask: Tensor) -> Sources:
        return Sources(mask, memory=source_memory(self.layers, self._encode(tokens, mask)))

    def attach(self, sources: Sources, kept: Sequence[int] | None = None) -> None:
        assert sources.memory is not None
        self.set_source(by_layer(sources.memory.unbind(1)), padding_bias(sources.mask, self.dtype))

    def set_source(self, memory: list[tuple[Tensor, Tensor]], bias: Float[Tensor, "row 1 1 source"] | None) -> None:
        """Set the keys and values of the sources, [row, head, source, dim] of each layer."""
        self._memory, self._bias = memory, bias

    def read(self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]]) -> ForwardOutput:
        self.cache.place(batch)
        states = self.states(self.cache, batch.tokens, batch.positions, batch.mask)
        return ForwardOutput(self.scores(states[:, -batch.keep :]))

    def states(
        self,
        cache: Any,
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


def encoder_of(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The encoder as a function of padded sources and their mask; written out if its parts are those of BART."""
    encoder = model.get_encoder()
    try:
        return BartEncoder(encoder).read
    except (ModelError, AttributeError):
        return lambda tokens, mask: encoder(input_ids=tokens, attention_mask=mask.long())[0]


def _attend_text(cache: Any, index: int, layer: Layer, mask: Tensor | None, x: Tensor) -> Tensor:
    """Self-attention to the text so far."""
    query, key, value = project_qkv(layer, x)
    keys, values = cache.update(key, value, index)
    return attend(query, keys, values, mask, layer.scale, layer.own_out)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second
