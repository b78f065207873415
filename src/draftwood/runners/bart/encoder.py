"""A direct implementation of BART's encoder: norms after each part (Marian, BART) or before it (mBART, Pegasus, M2M100)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, layer_norm, nn
from torch.nn.functional import embedding

from draftwood.core.errors import ModelError
from draftwood.runners.bart.layers import BartEmbedding, attend_within, final_norm_of, layer_of, padding_bias, read_layer
from draftwood.runners.support import TOLERANCE


class EncoderOutput(NamedTuple):
    """Sources before and after the layers of an encoder."""

    embedded: Float[Tensor, "row source width"]
    """Tokens and positions, before any norm."""
    states: Float[Tensor, "row source width"]


@final
class BartEncoder:
    """An encoder like BART's, on the model's weights, which are copied in small models.

    Attributes:
        longest: number of positions.

    Raises:
        ModelError, AttributeError: the encoder has other parts.
    """

    def __init__(self, encoder: Any) -> None:
        if encoder.dtype == torch.float16:
            raise ModelError("in float16 these encoders clamp overflows between their layers")
        self._embedding = BartEmbedding(encoder)
        self.longest = int(self._embedding.table.shape[0]) - self._embedding.offset
        # Positions that are not an nn.Embedding (M2M100) count the tokens that are not padding.
        positions = encoder.embed_positions
        self._padding = None if isinstance(positions, nn.Embedding) else int(positions.padding_idx)
        self._layers = [layer_of(part) for part in encoder.layers]
        self._final_norm = final_norm_of(encoder)

    def read(self, tokens: Int[Tensor, "row source"], mask: Bool[Tensor, "row source"] | None) -> EncoderOutput:
        """Encode sources; ``mask`` is False at padding, None without padding."""
        embedded = self.embedded(tokens)
        return EncoderOutput(embedded, self.states(embedded, padding_bias(mask, embedded.dtype)))

    def embedded(self, tokens: Int[Tensor, "row source"]) -> Float[Tensor, "row source width"]:
        """Embedded tokens and positions."""
        x, table, offset = self._embedding.words(tokens), self._embedding.table, self._embedding.offset
        if self._padding is None:
            return x + table[offset : offset + tokens.shape[1]]
        counts = (tokens != self._padding).long()
        return x + embedding(counts.cumsum(1) * counts + self._padding, table)

    def states(
        self, embedded: Float[Tensor, "row source width"], bias: Float[Tensor, "row 1 1 source"] | None
    ) -> Float[Tensor, "row source width"]:
        """The output of the layers; ``bias`` is :func:`draftwood.runners.bart.layers.padding_bias`."""
        x, norm_first = self._embedding.normed(embedded), self._final_norm is not None
        for layer in self._layers:
            x = read_layer(layer, x, partial(attend_within, layer, mask=bias), norm_first=norm_first)
        return x if self._final_norm is None else layer_norm(x, *self._final_norm)


def bart_encoder(encoder: Any, padding: int) -> BartEncoder | None:
    """The direct implementation; None if the encoder has other parts, or two short rows (one padded) get other states.

    Args:
        encoder: the encoder of a ``transformers`` encoder-decoder model.
        padding: the padding token, which inside a row is a token like any other.
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
            error = (bart.read(tokens, seen).states.double() - wanted)[whole.bool()].abs().max()
            if not float(error) <= TOLERANCE.get(encoder.dtype, 0.0) * max(1.0, float(wanted.abs().max())):
                return None
    return bart
