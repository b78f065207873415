"""The two functions of a masked-block drafter: one reads sources, once, and the other fills blocks after texts."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from draftwood.runners.bart.encoder import BartEncoder
from draftwood.runners.bart.layers import (
    attend,
    attend_within,
    by_layer,
    layer_of,
    padding_bias,
    product,
    read_layer,
    source_memory,
    split,
    transposed,
    weights_of,
)
from draftwood.runners.sources import Sources


@final
class MaskedBlockPasses:
    """The functions, on the drafter's weights, which are copied in small models."""

    def __init__(self, model: Any) -> None:
        self._encoder, self._layers = BartEncoder(model.encoder), [layer_of(part) for part in model.layers]
        question = model.question
        self._heads, self._scale = question.num_heads, question.scaling
        self._query, self._key, self._value, self._out = (
            weights_of(part) for part in (question.q_proj, question.k_proj, question.v_proj, question.out_proj)
        )
        self._table = model.positions.weight
        self._words, self._words_scale = model.encoder.embed_tokens.weight, float(model.encoder.embed_scale)
        self._head = transposed(self._words), None

    def read(self, tokens: Int[Tensor, "row source"], mask: Bool[Tensor, "row source"], positions: int) -> Sources:
        """Encode padded sources, and answer the first masked positions: their attention to the source."""
        bias, masked = padding_bias(mask, self._words.dtype), torch.arange(positions, device=tokens.device)
        embedded = self._encoder.embedded(tokens)
        memory = source_memory(self._layers, self._encoder.states(embedded, bias))
        queries = embedding(masked, self._table).unsqueeze(0).expand(tokens.shape[0], -1, -1)
        query, keys, values = (
            split(product(x, weights), self._heads)
            for x, weights in ((queries, self._query), (embedded, self._key), (embedded, self._value))
        )
        return Sources(mask, memory=memory, answers=attend(query, keys, values, bias, self._scale, self._out))

    def fill(
        self,
        sources: Sources,
        tokens: Int[Tensor, "row token"],
        positions: Int[Tensor, "row token"],
        seen: Bool[Tensor, "row token"],
        count: int,
    ) -> Float[Tensor, "row count vocab"]:
        """Scores of the last ``count`` tokens, which are masked; ``seen`` is False at padding."""
        assert sources.memory is not None
        assert sources.answers is not None
        x = embedding(tokens, self._words) * self._words_scale + embedding(positions, self._table)
        block = positions[:, -count:, None].expand(-1, -1, sources.answers.shape[2])
        x = torch.cat([x[:, :-count], x[:, -count:] + sources.answers.gather(1, block)], dim=1)
        mask, source_mask = padding_bias(seen, self._words.dtype), padding_bias(sources.mask, self._words.dtype)
        for layer, memory in zip(self._layers, by_layer(sources.memory), strict=True):
            x = read_layer(layer, x, partial(attend_within, layer, mask=mask), memory, source_mask, norm_first=False)
        return product(x[:, -count:], self._head)
