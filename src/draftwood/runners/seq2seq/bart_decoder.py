"""BART's decoder and its layers, computed on their weights: norms are after each part (Marian, BART) or before it (mBART,
Pegasus, M2M100). On small models and few tokens the calls between the modules of ``transformers`` take longer than the
arithmetic. Through them the bundled translation pair took 1.69 times the processor time for plain decoding of single
sentences and 1.32 times for blocks, and 1.45 and 1.23 times for eight sentences at a time (medians of five, in turn, one
thread of an Intel Xeon, ten short German sentences).

The layers are those of Vaswani et al. 2017 (arXiv 1706.03762): self-attention, attention to the source, feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, layer_norm, nn
from torch.nn.functional import embedding, scaled_dot_product_attention

from draftwood.core.errors import ModelError
from draftwood.runners.cache import TreeCache
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.rows import Sources

_SMALL = 512  # up to this width copied weights are faster: one product instead of three, and contiguous columns
Weights: TypeAlias = tuple[Tensor, Tensor | None]  # [input, output] and [output]
Norm: TypeAlias = tuple[tuple[int, ...], Tensor, Tensor, float]


class Attention(NamedTuple):
    """The weights of an attention.

    Attributes:
        inputs: those of query, key and value; one of all of them where they read the same in a small model.
        out: those of the output.
        heads: number of heads.
        scale: factor of the scores.
    """

    inputs: list[Weights]
    out: Weights
    heads: int
    scale: float

    def project(self, x: Float[Tensor, "row new width"]) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of one input, [row, head, new, dim] each."""
        parts = [product(x, weights) for weights in self.inputs]
        if len(parts) > 1:
            query, key, value = map(self._split, parts)
        else:
            query, key, value = parts[0].view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def query(self, x: Float[Tensor, "row new width"]) -> Float[Tensor, "row head new dim"]:
        """The query alone."""
        return self._split(product(x, self.inputs[0]))

    def memory(self, states: Float[Tensor, "row source width"]) -> list[Float[Tensor, "row head source dim"]]:
        """Keys and values alone."""
        return [self._split(product(states, weights)) for weights in self.inputs[1:]]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Float[Tensor, "row new width"]:
        """What the query finds."""
        found: Tensor = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=self.scale)
        return product(found.transpose(1, 2).flatten(2), self.out)

    def _split(self, x: Tensor) -> Float[Tensor, "row head new dim"]:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Layer(NamedTuple):
    """The weights of one layer of a decoder."""

    own: Attention
    own_norm: Norm
    source: Attention
    source_norm: Norm
    up: Weights
    activation: Callable[[Tensor], Tensor]
    down: Weights
    last_norm: Norm

    def read(
        self,
        x: Float[Tensor, "row new width"],
        attention: Callable[[Tensor], Tensor],
        memory: tuple[Tensor, Tensor],
        bias: Float[Tensor, "row 1 1 source"] | None,
        *,
        norm_first: bool,
    ) -> Float[Tensor, "row new width"]:
        """The output.

        Args:
            x: the states of the new tokens.
            attention: self-attention.
            memory: keys and values of the sources, [row, head, source, dim].
            bias: additive mask of the sources.
            norm_first: norms are before each part (mBART, Pegasus, M2M100), not after it (Marian, BART).
        """
        parts: list[tuple[Norm, Callable[[Tensor], Tensor]]] = [
            (self.own_norm, attention),
            (self.source_norm, lambda read: self.source.attend(self.source.query(read), *memory, bias)),
            (self.last_norm, lambda read: product(self.activation(product(read, self.up)), self.down)),
        ]
        for norm, part in parts:
            x = x + part(layer_norm(x, *norm)) if norm_first else layer_norm(x + part(x), *norm)
        return x


def layer_of(part: Any) -> Layer:
    """The weights of a decoder layer; raises a ModelError or AttributeError if it has other parts."""
    return Layer(
        own=attention_of(part.self_attn, one_input=True),
        own_norm=norm_of(part.self_attn_layer_norm),
        source=attention_of(part.encoder_attn),
        source_norm=norm_of(part.encoder_attn_layer_norm),
        up=_weights_of(part.fc1),
        activation=part.activation_fn,
        down=_weights_of(part.fc2),
        last_norm=norm_of(part.final_layer_norm),
    )


def attention_of(part: Any, *, one_input: bool = False) -> Attention:
    """The weights of an attention, whose query, key and value may read the same input; raises as :func:`layer_of`."""
    inputs = [_weights_of(one) for one in (part.q_proj, part.k_proj, part.v_proj)]
    biases = [bias for _, bias in inputs if bias is not None]
    if one_input and inputs[0][0].shape[0] <= _SMALL and len(biases) == len(inputs):
        with torch.no_grad():
            inputs = [(torch.cat([weight for weight, _ in inputs], dim=1), torch.cat(biases))]
    return Attention(inputs, _weights_of(part.out_proj), part.num_heads, part.scaling)


def source_memory(
    layers: Sequence[Layer], states: Float[Tensor, "row source width"]
) -> Float[Tensor, "row part head source dim"]:
    """Keys and values of the encoded source, layer by layer."""
    return torch.stack([part for layer in layers for part in layer.source.memory(states)], dim=1)


def by_layer(memory: Float[Tensor, "row part head source dim"]) -> list[tuple[Tensor, Tensor]]:
    """The keys and values of :func:`source_memory`, a pair for each layer."""
    parts = memory.unbind(1)
    return list(zip(parts[::2], parts[1::2], strict=True))


def padding_bias(seen: Bool[Tensor, "row key"], dtype: torch.dtype) -> Float[Tensor, "row 1 1 key"] | None:
    """The additive mask that hides padding, where ``seen`` is False; None without padding."""
    if bool(seen.all()):
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)[:, None, None]


def position_table(stack: Any) -> tuple[Tensor, int] | None:
    """The table of a decoder's absolute positions, and the row of position 0; None if it has none."""
    positions: Any = getattr(stack, "embed_positions", None)
    if isinstance(positions, nn.Embedding):
        return positions.weight, int(getattr(positions, "offset", 0))
    weights = getattr(positions, "weights", None)
    if isinstance(weights, Tensor) and getattr(positions, "padding_idx", None) is not None:
        return weights, int(positions.padding_idx) + 1
    return None


def _weights_of(part: Any) -> Weights:
    if type(part) is not nn.Linear:
        raise ModelError(f"a {type(part).__name__} takes the place of a plain linear layer")
    return transposed(part.weight), part.bias


def transposed(weight: Tensor) -> Float[Tensor, "input output"]:
    """The weight as :func:`product` uses it; with few tokens a copy halves the time of a small product."""
    out = weight.detach().t()
    return out.contiguous() if out.shape[0] <= _SMALL else out


def product(x: Float[Tensor, "row new input"], weights: Weights) -> Tensor:
    """The output of a linear layer, [row, new, output]."""
    weight, bias = weights
    flat = x.reshape(-1, weight.shape[0])
    out: Tensor = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
    return out.view(*x.shape[:-1], weight.shape[1])


def norm_of(part: Any) -> Norm:
    """A norm's settings and weights; raises a ModelError for another module."""
    if type(part) is not nn.LayerNorm or part.bias is None:
        raise ModelError(f"a {type(part).__name__} takes the place of a layer norm with weight and bias")
    return part.normalized_shape, part.weight, part.bias, part.eps


def layer_list(decoder: Any) -> nn.ModuleList:
    """The layers of a decoder; raises a LookupError if it has no list of layers."""
    for part in decoder.modules():
        if isinstance(part, nn.ModuleList):
            return part
    raise LookupError(f"{type(decoder).__name__} has no list of layers")


@final
class BartDecoder:
    """A decoder like BART's, on the model's weights, which are copied in small models, and its encoder.

    Raises:
        ModelError, AttributeError, LookupError: the decoder has other parts.
    """

    bare = True

    def __init__(self, model: Any) -> None:
        self._decoder = decoder = model.get_decoder()
        if (table := position_table(decoder)) is None:
            raise ModelError(f"a {type(decoder).__name__} has no table of positions")
        self.dtype, (self._table, self._offset) = model.dtype, table
        self._encoder, self._layers = model.get_encoder(), [layer_of(part) for part in layer_list(decoder)]
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
        x, norm_first = self._embedded(batch.tokens, batch.positions), self._final_norm is not None
        for index, layer in enumerate(self._layers):
            attention = partial(self._attend_text, index, layer, batch.mask)
            x = layer.read(x, attention, self._memory[index], self._bias, norm_first=norm_first)
        states = x if self._final_norm is None else layer_norm(x, *self._final_norm)
        return ForwardOutput(product(states[:, -batch.keep :], self._head))

    def _embedded(self, tokens: Int[Tensor, "row new"], positions: Int[Tensor, "row new"]) -> Float[Tensor, "row new width"]:
        """The input of the first layer: embeddings of tokens and absolute positions, and the norm after them, if any."""
        words, scale = self._decoder.embed_tokens(tokens), float(getattr(self._decoder, "embed_scale", 1.0))
        x: Tensor = (words if scale == 1.0 else words * scale) + embedding(positions + self._offset, self._table)
        return self._decoder.layernorm_embedding(x) if hasattr(self._decoder, "layernorm_embedding") else x

    def _attend_text(self, index: int, layer: Layer, mask: Tensor | None, x: Tensor) -> Float[Tensor, "row new width"]:
        """Self-attention to the text so far."""
        query, key, value = layer.own.project(x)
        keys, values = self.cache.update(key, value, index)
        return layer.own.attend(query, keys, values, mask)
