"""The network of the masked-block drafter: the protocol, and a direct implementation in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
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
    transposed,
)
from draftwood.runners.blocks.source import Source
from draftwood.runners.rows import padded_rows, padded_tokens, remaining_rows


@runtime_checkable
class BlockNetwork(Protocol):
    """A masked-block drafter over the sources of a batch."""

    def clear(self) -> None:
        """Remove all rows."""

    def add(self, sources: Sequence[Sequence[int]]) -> None:
        """Append rows, whose sources are read once for all blocks."""

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""

    def scores(self, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        """Scores of the ``count`` tokens after each text."""

    def fresh(self) -> BlockNetwork:
        """A network with the same weights and no rows."""


@final
class BartBlocks:
    """A drafter in evaluation mode, whose weights are copied in small models, and its encoded sources."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._pad = int(model.config.pad_token_id)
        self._encoder = bart_encoder(model.encoder, self._pad)
        self._layers = [layer_of(part) for part in model.layers]
        self._head = transposed(model.encoder.embed_tokens.weight), None
        self.clear()

    def clear(self) -> None:
        self._unread: list[Sequence[int]] = []  # sources of the last rows, not encoded yet
        self._source: Source | None = None  # of the rows before them
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
            stay = torch.tensor(remaining_rows(read, rows), dtype=torch.long, device=self.model.device)
            self._source, self._memory = self._source.picked(stay), self._memory[stay]

    def scores(self, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        prefix, mask = padded_tokens(texts, self._pad, self.model.device)
        with torch.inference_mode():
            source, memory = self._encoded(prefix.shape[1] + count)
            x, seen = self.model.block_inputs(source, prefix, None if mask is None else mask.long(), count)
            text_mask, source_mask = padding_bias(seen, x.dtype), padding_bias(source.mask, x.dtype)
            states = read_block(self._layers, x, by_layer(memory.unbind(1)), text_mask, source_mask)
            return product(states[:, -count:], self._head)

    def _encoded(self, positions: int) -> tuple[Source, Float[Tensor, "row part head source dim"]]:
        """The sources, with answers for the first ``positions`` positions or more, and their keys and values.

        Answers are computed in portions because texts grow slowly.
        """
        source, memory = self._source, self._memory
        if self._unread:
            new = self._read_source(*padded_tokens(self._unread, self._pad, self.model.device))
            new_memory = source_memory(self._layers, new.states)
            if source is None or memory is None:
                source, memory = new, new_memory
            else:
                known = 0 if source.answers is None else source.answers.shape[1]
                source, memory = source.joined(self.model.with_answers(new, known)), padded_rows(memory, new_memory, 3)
            self._unread = []
        assert source is not None
        assert memory is not None
        if source.answers is None or source.answers.shape[1] < positions:
            room = int(self.model.positions.num_embeddings)
            source = self.model.with_answers(source, min(room, positions + int(self.model.config.block)))
        self._source, self._memory = source, memory
        return source, memory

    def _read_source(self, tokens: Int[Tensor, "row source"], mask: Bool[Tensor, "row source"] | None) -> Source:
        if self._encoder is None:
            found: Source = self.model.encode(tokens, None if mask is None else mask.long())
            return found
        return Source(*self._encoder.read(tokens, mask), mask)


def read_block(
    layers: Sequence[Layer],
    x: Float[Tensor, "row token width"],
    memory: Sequence[tuple[Tensor, Tensor]],
    text_mask: Float[Tensor, "row 1 1 token"] | None,
    source_mask: Float[Tensor, "row 1 1 source"] | None,
) -> Float[Tensor, "row token width"]:
    """The output of the layers for prefix and block; the masks are additive."""
    for layer, parts in zip(layers, memory, strict=True):
        x = read_layer(layer, x, partial(attend_within, layer, mask=text_mask), parts, source_mask, norm_first=False)
    return x
