"""The two functions of a masked-block drafter: one reads sources, once, and the other fills blocks after texts."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
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


@runtime_checkable
class MaskedBlockPasses(Protocol):
    """The two functions, as a library calls them."""

    def another(self) -> MaskedBlockPasses:
        """The same functions without sources."""

    def width(self, longest: int) -> int:
        """The length to which texts are padded."""

    def read(self, tokens: Int[Tensor, "row source"], mask: Bool[Tensor, "row source"], positions: int) -> Sources:
        """Encode padded sources, and answer the first masked positions."""

    def attach(self, sources: Sources) -> None:
        """Use these sources from now on."""

    def fill(
        self,
        tokens: Int[Tensor, "row token"],
        positions: Int[Tensor, "row token"],
        seen: Bool[Tensor, "row token"],
        count: int,
    ) -> Float[Tensor, "row count vocab"]:
        """Scores of the last ``count`` tokens, which are masked; ``seen`` is False at padding."""


@final
class TorchMaskedBlockPasses:
    """The functions in PyTorch, as :class:`MaskedBlockPasses`."""

    def __init__(self, model: Any) -> None:
        self._dtype = model.dtype
        self._reading, self._filling = SourceReading(model), BlockFilling(model)

    def another(self) -> TorchMaskedBlockPasses:
        return copy.copy(self)

    def width(self, longest: int) -> int:
        return longest

    def read(self, tokens: Tensor, mask: Tensor, positions: int) -> Sources:
        masked = torch.arange(positions, device=tokens.device)
        memory, answers = self._reading(tokens, padding_bias(mask, self._dtype), masked)
        return Sources(mask, memory=memory, answers=answers)

    def attach(self, sources: Sources) -> None:
        assert sources.memory is not None
        self._sources = padding_bias(sources.mask, self._dtype), sources.answers, *sources.memory.unbind(1)

    def fill(self, tokens: Tensor, positions: Tensor, seen: Tensor, count: int) -> Float[Tensor, "row count vocab"]:
        keep = torch.arange(tokens.shape[1] - count, tokens.shape[1], device=tokens.device)
        scores: Tensor = self._filling(tokens, positions, keep, padding_bias(seen, self._dtype), *self._sources)
        return scores


@final
class SourceReading(nn.Module):
    """The encoder, the layers' keys and values, and the attention of masked positions to the source."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._encoder, self._layers = BartEncoder(model.encoder), [layer_of(part) for part in model.layers]
        question = model.question
        self._heads, self._scale = question.num_heads, question.scaling
        self._query, self._key, self._value, self._out = (
            weights_of(part) for part in (question.q_proj, question.k_proj, question.v_proj, question.out_proj)
        )
        self._table = model.positions.weight

    def forward(self, tokens: Tensor, source_mask: Tensor | None, masked: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self._encoder.embedded(tokens)
        states = self._encoder.states(embedded, source_mask)
        queries = embedding(masked, self._table).unsqueeze(0).expand(tokens.shape[0], -1, -1)
        query, keys, values = (
            split(product(x, weights), self._heads)
            for x, weights in ((queries, self._query), (embedded, self._key), (embedded, self._value))
        )
        return source_memory(self._layers, states), attend(query, keys, values, source_mask, self._scale, self._out)


@final
class BlockFilling(nn.Module):
    """The layers on prefix and block."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._words, self._scale = model.encoder.embed_tokens.weight, float(model.encoder.embed_scale)
        self._table = model.positions.weight
        self._layers = [layer_of(part) for part in model.layers]
        self._head = transposed(self._words), None

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        keep: Tensor,
        mask: Tensor | None,
        source_mask: Tensor | None,
        answers: Tensor,
        *parts: Tensor,
    ) -> Tensor:
        x = embedding(tokens, self._words) * self._scale + embedding(positions, self._table)
        block = positions.index_select(1, keep).unsqueeze(-1).expand(-1, -1, answers.shape[2])
        filled = x.index_select(1, keep) + answers.gather(1, block)
        x = torch.cat([x[:, : x.shape[1] - keep.shape[0]], filled], dim=1)
        for layer, memory in zip(self._layers, by_layer(parts), strict=True):
            x = read_layer(layer, x, partial(attend_within, layer, mask=mask), memory, source_mask, norm_first=False)
        return product(x.index_select(1, keep), self._head)
