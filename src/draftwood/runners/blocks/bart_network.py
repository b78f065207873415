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
    attend_within,
    by_layer,
    layer_of,
    padding_bias,
    product,
    read_layer,
    source_memory,
    turned,
)
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter, Source
from draftwood.runners.rows import padded_rows, staying


@runtime_checkable
class BlockNetwork(Protocol):
    """A masked-block drafter over the sources of a batch."""

    def clear(self) -> None:
        """All rows leave."""
        ...

    def add(self, sources: Sequence[Sequence[int]]) -> None:
        """New rows, whose sources are read once for all their blocks."""
        ...

    def drop(self, rows: Sequence[int]) -> None:
        """These rows leave; the others keep their order."""
        ...

    def scores(self, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        """Scores of the ``count`` tokens after each text."""
        ...

    def fresh(self) -> BlockNetwork:
        """The same weights, and no rows."""
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
        self.clear()

    def clear(self) -> None:
        self._unread: list[Sequence[int]] = []  # sources of the last rows
        self._source: Source | None = None  # of those before
        self._memory: Float[Tensor, "row part head source dim"] | None = None

    def fresh(self) -> BartBlocks:
        found = copy.copy(self)
        found.clear()
        return found

    def add(self, sources: Sequence[Sequence[int]]) -> None:
        self._unread += sources

    def drop(self, rows: Sequence[int]) -> None:
        read = 0 if self._source is None else len(self._source.states)
        self._unread = [source for row, source in enumerate(self._unread, read) if row not in rows]
        if self._source is not None and self._memory is not None:
            stay = torch.tensor(staying(read, rows), dtype=torch.long, device=self.model.device)
            self._source, self._memory = self._source.picked(stay), self._memory[stay]

    def scores(self, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        prefix, mask = self._padded(texts)
        with torch.inference_mode():
            source, memory = self._encoded(prefix.shape[1] + count)
            x, seen = self.model.entered(source, prefix, mask, count)
            here, there = padding_bias(seen, x.dtype), padding_bias(source.mask, x.dtype)
            states = read_block(self._layers, x, by_layer(memory.unbind(1)), here, there)
            return product(states[:, -count:], self._head)

    def _encoded(self, positions: int) -> tuple[Source, Float[Tensor, "row part head source dim"]]:
        """The sources, with the answers to at least the first ``positions`` positions, and the layers' keys and values of
        them. The answers are computed in portions, as texts grow slowly."""
        source, memory = self._source, self._memory
        if self._unread:
            new = self._read_source(*self._padded(self._unread))
            its_memory = source_memory(self._layers, new.states)
            if source is None or memory is None:
                source, memory = new, its_memory
            else:
                known = 0 if source.answers is None else source.answers.shape[1]
                source, memory = source.joined(self.model.answered(new, known)), padded_rows(memory, its_memory, 3)
            self._unread = []
        assert source is not None
        assert memory is not None
        if source.answers is None or source.answers.shape[1] < positions:
            room = int(self.model.positions.num_embeddings)
            source = self.model.answered(source, min(room, positions + int(self.model.config.block)))
        self._source, self._memory = source, memory
        return source, memory

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
        x = read_layer(layer, x, partial(attend_within, layer, mask=here), parts, there, norm_first=False)
    return x
