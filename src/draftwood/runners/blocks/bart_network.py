"""The masked-block drafter's network written out for PyTorch, and what a runner wants of any such network."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.runners.bart.encoder import bart_encoder
from draftwood.runners.bart.layers import (
    Layer,
    ask,
    feed,
    itself,
    layer_of,
    padding_bias,
    product,
    residual,
    source_memory,
    turned,
)
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter, Source


@runtime_checkable
class BlockNetwork(Protocol):
    """A masked-block drafter over the sources of a batch."""

    def start(self, sources: Sequence[Sequence[int]]) -> None:
        """Read these sources from now on, once for all their blocks."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        ...

    def scores(self, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        """Scores of the ``count`` tokens after each text."""
        ...

    def fresh(self) -> BlockNetwork:
        """The same weights, and a memory of its own."""
        ...


@final
class BartBlocks:
    """A drafter's weights, which are copied in small models, and what was made of the sources.

    Args:
        model: in evaluation mode.
    """

    def __init__(self, model: MaskedBlockDrafter) -> None:
        self.model = model
        self._pad = int(model.config.pad_token_id)
        self._encoder = bart_encoder(model.encoder, self._pad)
        self._layers = [layer_of(part) for part in model.layers]
        self._head = turned(model.encoder.embed_tokens.weight), None
        self.start([])

    def start(self, sources: Sequence[Sequence[int]]) -> None:
        self._sources = list(sources)
        self._source: Source | None = None
        self._memory: list[tuple[Tensor, Tensor]] = []

    def fresh(self) -> BartBlocks:
        found = copy.copy(self)
        found.start([])
        return found

    def select(self, rows: Sequence[int]) -> None:
        self._sources = [self._sources[r] for r in rows]
        if self._source is not None:
            index = torch.tensor(list(rows), device=self.model.device)
            self._source = self._source.select(index)
            self._memory = [(keys[index], values[index]) for keys, values in self._memory]

    def scores(self, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        prefix, mask = self._padded(texts)
        with torch.inference_mode():
            source = self._encoded(prefix.shape[1] + count)
            x, seen = self.model.entered(source, prefix, mask, count)
            here, there = padding_bias(seen, x.dtype), padding_bias(source.mask, x.dtype)
            return product(read_block(self._layers, x, self._memory, here, there)[:, -count:], self._head)

    def _encoded(self, positions: int) -> Source:
        """The sources, and what the first ``positions`` positions ask them; asked in portions, as texts grow slowly."""
        if self._source is None:
            self._source = self._read_source(*self._padded(self._sources))
            self._memory = source_memory(self._layers, self._source.states)
        known = 0 if self._source.answers is None else self._source.answers.shape[1]
        if known < positions:
            room = int(self.model.positions.num_embeddings)
            self._source = self.model.answered(self._source, min(room, positions + int(self.model.config.block)))
        return self._source

    def _read_source(self, tokens: Int[Tensor, "row source"], mask: Int[Tensor, "row source"] | None) -> Source:
        if self._encoder is None:
            return self.model.encode(tokens, mask)
        seen = None if mask is None else mask.bool()
        return Source(*self._encoder.read(tokens, seen), seen)

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "row longest"], Int[Tensor, "row longest"] | None]:
        """Rows filled up on the right, and 1 where they hold tokens; no such mask where all are equally long."""
        lengths, device = [len(row) for row in rows], self.model.device
        longest = max(lengths)
        tokens = torch.tensor([[*row, *[self._pad] * (longest - len(row))] for row in rows], device=device)
        if min(lengths) == longest:
            return tokens, None
        place = torch.arange(longest, device=device)
        return tokens, (place < torch.tensor(lengths, device=device).unsqueeze(1)).long()


def read_block(
    layers: Sequence[Layer],
    x: Float[Tensor, "row token width"],
    memory: Sequence[tuple[Tensor, Tensor]],
    here: Float[Tensor, "row 1 1 token"] | None,
    there: Float[Tensor, "row 1 1 source"] | None,
) -> Float[Tensor, "row token width"]:
    """What the layers make of prefix and block; the masks are additive."""
    for layer, parts in zip(layers, memory, strict=True):
        inner = layer.inner
        x = residual(x, inner.own_norm, partial(itself, inner, here), first=False)
        x = residual(x, layer.source_norm, partial(ask, layer, parts, there), first=False)
        x = residual(x, inner.last_norm, partial(feed, inner), first=False)
    return x
