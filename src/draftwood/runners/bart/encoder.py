"""A direct implementation of BART's encoder: norms after each part (Marian, BART) or before it (mBART, Pegasus, M2M100)."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, layer_norm, nn
from torch.nn.functional import embedding

from draftwood.runners.bart.layers import BartEmbedding, attend_within, final_norm_of, layer_of, padding_bias, read_layer

_LARGEST = torch.finfo(torch.float16).max - 1000


@final
class BartEncoder:
    """An encoder like BART's, on the model's weights, which are copied in small models.

    Raises:
        ModelError, AttributeError: the encoder has other parts.
    """

    def __init__(self, encoder: Any) -> None:
        self._embedding = BartEmbedding(encoder)
        # Positions that are not an nn.Embedding (M2M100) count the tokens that are not padding.
        positions = encoder.embed_positions
        self._padding = None if isinstance(positions, nn.Embedding) else int(positions.padding_idx)
        self._layers = [layer_of(part) for part in encoder.layers]
        self._final_norm = final_norm_of(encoder)

    def read(self, tokens: Int[Tensor, "row source"], mask: Bool[Tensor, "row source"]) -> Float[Tensor, "row source width"]:
        """Encode sources; ``mask`` is False at padding."""
        embedded = self.embedded(tokens)
        return self.states(embedded, padding_bias(mask, embedded.dtype))

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
            if x.dtype == torch.float16:  # where the models clamp overflows
                x = x.clamp(-_LARGEST, _LARGEST)
        return x if self._final_norm is None else layer_norm(x, *self._final_norm)
