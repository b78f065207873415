"""Layers of BART's kind written out, with nothing between the tensor operations: on small models and a few tokens
the modules of ``transformers`` take longer to call one another than the processor takes to calculate.

The layers are those of Vaswani et al. 2017 (arXiv 1706.03762): self-attention, attention to the source in a decoder,
feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, layer_norm, nn
from torch.nn.functional import scaled_dot_product_attention

from draftwood.core.errors import ModelError

_SMALL = 512  # up to this width copied weights pay: one product instead of three, and columns that lie side by side
Weights: TypeAlias = tuple[Tensor, Tensor | None]  # [input, output] and [output]
Norm: TypeAlias = tuple[tuple[int, ...], Tensor, Tensor, float]


class EncoderLayer(NamedTuple):
    """The weights of one layer of an encoder."""

    own: list[Weights]  # query, key and value of self-attention: three products, or one of all
    own_out: Weights
    own_norm: Norm
    up: Weights
    activation: Callable[[Tensor], Tensor]
    down: Weights
    last_norm: Norm
    heads: int
    scale: float


class Layer(NamedTuple):
    """The weights of one layer of a decoder."""

    inner: EncoderLayer  # self-attention and the feed-forward part
    question: Weights
    key: Weights
    value: Weights
    source_out: Weights
    source_norm: Norm
    scale: float  # of cross-attention


class Ends(NamedTuple):
    """What stands before and behind the layers of an encoder or decoder."""

    embed: Callable[[Tensor], Tensor]
    factor: float  # of the embedded tokens
    positions: Tensor  # [position, width]
    offset: int  # the row of position 0
    first_norm: Norm | None
    final_norm: Norm | None  # where there is one, norms stand before the parts of a layer, else after them

    def tokens(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row new width"]:
        """Embedded tokens, without positions."""
        x = self.embed(tokens)
        return x if self.factor == 1.0 else x * self.factor


def ends_of(stack: Any) -> Ends:
    if (table := position_table(stack)) is None:
        raise ModelError(f"a {type(stack).__name__} has no table of positions")
    return Ends(
        embed=stack.embed_tokens,
        factor=float(getattr(stack, "embed_scale", 1.0)),
        positions=table[0],
        offset=table[1],
        first_norm=norm_of(stack.layernorm_embedding) if hasattr(stack, "layernorm_embedding") else None,
        final_norm=norm_of(stack.layer_norm) if hasattr(stack, "layer_norm") else None,
    )


def encoder_layer_of(part: Any) -> EncoderLayer:
    own = part.self_attn
    return EncoderLayer(
        own=_joined([weights_of(own.q_proj), weights_of(own.k_proj), weights_of(own.v_proj)]),
        own_out=weights_of(own.out_proj),
        own_norm=norm_of(part.self_attn_layer_norm),
        up=weights_of(part.fc1),
        activation=part.activation_fn,
        down=weights_of(part.fc2),
        last_norm=norm_of(part.final_layer_norm),
        heads=own.num_heads,
        scale=own.scaling,
    )


def layer_of(part: Any) -> Layer:
    source = part.encoder_attn
    return Layer(
        inner=encoder_layer_of(part),
        question=weights_of(source.q_proj),
        key=weights_of(source.k_proj),
        value=weights_of(source.v_proj),
        source_out=weights_of(source.out_proj),
        source_norm=norm_of(part.encoder_attn_layer_norm),
        scale=source.scaling,
    )


def residual(x: Tensor, norm: Norm, part: Callable[[Tensor], Tensor], *, first: bool) -> Tensor:
    """A part of a layer added to what it reads, with the norm ``first`` or last."""
    return x + part(layer_norm(x, *norm)) if first else layer_norm(x + part(x), *norm)


def own(layer: EncoderLayer, x: Float[Tensor, "row new width"]) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of self-attention, [row, head, new, dim] each."""
    parts = [product(x, weights) for weights in layer.own]
    if len(parts) > 1:
        query, key, value = (split(part, layer.heads) for part in parts)
    else:
        dim = layer.own_out[0].shape[0] // layer.heads
        query, key, value = parts[0].view(*x.shape[:2], 3, layer.heads, dim).permute(2, 0, 3, 1, 4).unbind(0)
    return query, key, value


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, out: Weights) -> Tensor:
    """What the heads find, [row, new, width]."""
    found: Tensor = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale).transpose(1, 2)
    return product(found.reshape(*found.shape[:2], out[0].shape[0]), out)


def itself(layer: EncoderLayer, mask: Tensor | None, x: Tensor) -> Float[Tensor, "row new width"]:
    """Self-attention among tokens that are all new."""
    return attend(*own(layer, x), mask, layer.scale, layer.own_out)


def source_memory(layers: list[Layer], states: Float[Tensor, "row source width"]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values that each layer makes of the encoded source, [row, head, source, dim]."""
    return [
        (split(product(states, layer.key), layer.inner.heads), split(product(states, layer.value), layer.inner.heads))
        for layer in layers
    ]


def ask(layer: Layer, memory: tuple[Tensor, Tensor], mask: Tensor | None, x: Tensor) -> Float[Tensor, "row new width"]:
    """Attention to the source."""
    query = split(product(x, layer.question), layer.inner.heads)
    return attend(query, *memory, mask, layer.scale, layer.source_out)


def feed(layer: EncoderLayer, x: Tensor) -> Float[Tensor, "row new width"]:
    """The feed-forward part."""
    return product(layer.activation(product(x, layer.up)), layer.down)


def padding_bias(seen: Bool[Tensor, "row key"] | None, dtype: torch.dtype) -> Float[Tensor, "row 1 1 key"] | None:
    """What attention adds so that padding, where ``seen`` is False, is not seen; None where nothing is padded."""
    return None if seen is None else bias_of(seen, dtype)


def bias_of(seen: Bool[Tensor, "row key"], dtype: torch.dtype) -> Float[Tensor, "row 1 1 key"]:
    """-inf where ``seen`` is False, and 0 elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)[:, None, None]


def position_table(stack: Any) -> tuple[Tensor, int] | None:
    """The table of an encoder's or decoder's absolute positions, and the row of position 0; None if it has none."""
    positions: Any = getattr(stack, "embed_positions", None)
    if isinstance(positions, nn.Embedding):
        return positions.weight, int(getattr(positions, "offset", 0))
    weights = getattr(positions, "weights", None)
    if isinstance(weights, Tensor) and getattr(positions, "padding_idx", None) is not None:
        return weights, int(positions.padding_idx) + 1
    return None


def weights_of(part: Any) -> Weights:
    if type(part) is not nn.Linear:
        raise ModelError(f"a {type(part).__name__} stands where a plain linear layer was wanted")
    return turned(part.weight), part.bias


def turned(weight: Tensor) -> Float[Tensor, "input output"]:
    """As :func:`product` wants it; for few tokens the copy halves the time of a small product."""
    turned = weight.detach().t()
    return turned.contiguous() if turned.shape[0] <= _SMALL else turned


def product(x: Float[Tensor, "row new input"], weights: Weights) -> Tensor:
    """The output of a linear layer, [row, new, output]."""
    weight, bias = weights
    flat = x.reshape(-1, weight.shape[0])
    out: Tensor = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
    return out.view(*x.shape[:-1], weight.shape[1])


def _joined(parts: list[Weights]) -> list[Weights]:
    """Weights of several products of one input, as one where that is worth a copy."""
    if parts[0][0].shape[0] > _SMALL or any(bias is None for _, bias in parts):
        return parts
    with torch.no_grad():
        return [(torch.cat([w for w, _ in parts], dim=1), torch.cat([b for _, b in parts if b is not None]))]


def norm_of(part: Any) -> Norm:
    if type(part) is not nn.LayerNorm or part.bias is None:
        raise ModelError(f"a {type(part).__name__} stands where a layer norm with weight and bias was wanted")
    return part.normalized_shape, part.weight, part.bias, part.eps


def split(x: Tensor, heads: int) -> Float[Tensor, "row head new dim"]:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)
