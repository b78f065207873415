"""The encoder of BART and its kin, written out: norms after each part (Marian, BART), or before it (mBART, Pegasus,
M2M100)."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, layer_norm, nn
from torch.nn.functional import embedding

from draftwood.core.errors import ModelError
from draftwood.runners.bart.layers import (
    EncoderLayer,
    attend,
    encoder_layer_of,
    feed,
    norm_of,
    own,
    padding_bias,
    position_table,
)
from draftwood.runners.support import TOLERANCE


class Reading(NamedTuple):
    """Sources before and after the layers of an encoder."""

    embedded: Float[Tensor, "row source width"]
    """Tokens and positions, before any norm."""
    states: Float[Tensor, "row source width"]


@final
class BartEncoder:
    """An encoder of BART's kind, run on its weights, which are copied in small models.

    Attributes:
        longest: positions that it has.

    Raises:
        ModelError, AttributeError: the encoder is made of other parts.
    """

    def __init__(self, encoder: Any) -> None:
        if (table := position_table(encoder)) is None:
            raise ModelError(f"a {type(encoder).__name__} has no table of positions")
        if encoder.dtype == torch.float16:
            raise ModelError("in float16 these encoders clamp what overflows between their layers")
        self._table, self._offset = table
        self.longest = int(self._table.shape[0]) - self._offset
        # Positions that are no embedding (M2M100) count the tokens that are not padding, wherever padding stands.
        positions = encoder.embed_positions
        self._padding = None if isinstance(positions, nn.Embedding) else int(positions.padding_idx)
        self._embed = encoder.embed_tokens
        self._scale = float(getattr(encoder, "embed_scale", 1.0))
        self._first_norm = norm_of(encoder.layernorm_embedding) if hasattr(encoder, "layernorm_embedding") else None
        self._layers = [encoder_layer_of(part) for part in encoder.layers]
        self._final_norm = norm_of(encoder.layer_norm) if hasattr(encoder, "layer_norm") else None

    def read(self, tokens: Int[Tensor, "row source"], mask: Bool[Tensor, "row source"] | None) -> Reading:
        """Read sources; ``mask`` is False at padding, None where nothing is padded."""
        embedded = self.embedded(tokens)
        return Reading(embedded, self.states(embedded, padding_bias(mask, embedded.dtype)))

    def embedded(self, tokens: Int[Tensor, "row source"]) -> Float[Tensor, "row source width"]:
        """Tokens and positions."""
        x: Tensor = self._embed(tokens)
        if self._scale != 1.0:
            x = x * self._scale
        if self._padding is None:
            return x + self._table[self._offset : self._offset + tokens.shape[1]]
        told = (tokens != self._padding).long()
        return x + embedding(told.cumsum(1) * told + self._padding, self._table)

    def states(
        self, embedded: Float[Tensor, "row source width"], bias: Float[Tensor, "row 1 1 source"] | None
    ) -> Float[Tensor, "row source width"]:
        """What the layers make of it; ``bias`` is :func:`draftwood.runners.bart.layers.padding_bias`."""
        x = embedded if self._first_norm is None else layer_norm(embedded, *self._first_norm)
        if self._final_norm is None:
            for layer in self._layers:
                x = layer_norm(x + _itself(layer, x, bias), *layer.own_norm)
                x = layer_norm(x + feed(layer, x), *layer.last_norm)
            return x
        for layer in self._layers:
            x = x + _itself(layer, layer_norm(x, *layer.own_norm), bias)
            x = x + feed(layer, layer_norm(x, *layer.last_norm))
        return layer_norm(x, *self._final_norm)


def bart_encoder(encoder: Any, padding: int) -> BartEncoder | None:
    """The encoder written out; None if it is made of other parts, or two short rows, one of them padded, have other states.

    Args:
        encoder: of a ``transformers`` encoder-decoder model.
        padding: the padding token; it also stands inside a row, where it is a token as any other.
    """
    try:
        bart = BartEncoder(encoder)
    except (ModelError, AttributeError):
        return None
    known, device = int(encoder.embed_tokens.weight.shape[0]), encoder.device
    tokens = (torch.arange(10, device=device).view(2, 5) * 7 % known)[:, : bart.longest]
    tokens[:, 1:2] = min(padding, known - 1)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, 3:] = False
    with torch.inference_mode():
        for seen in (mask, None):
            whole = (torch.ones_like(mask) if seen is None else seen).long()
            wanted = encoder(input_ids=tokens, attention_mask=whole)[0].double()
            apart = (bart.read(tokens, seen).states.double() - wanted)[whole.bool()].abs().max()
            if not float(apart) <= TOLERANCE.get(encoder.dtype, 0.0) * max(1.0, float(wanted.abs().max())):
                return None
    return bart


def _itself(layer: EncoderLayer, x: Tensor, bias: Tensor | None) -> Float[Tensor, "row source width"]:
    """Self-attention."""
    return attend(*own(layer, x), bias, layer.scale, layer.own_out)
