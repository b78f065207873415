"""The masked-block drafter as a runner: it reads a source once and fills the block after the text in one pass a round."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, layer_norm

from draftwood.errors import CacheError, ConfigError
from draftwood.models.block_round import BlockRound, unwanted
from draftwood.models.lean import ask, attend, feed, layer_of, own, product, source_memory, turned
from draftwood.models.masked_block import MaskedBlockDrafter, Source


@final
class MaskedBlockRunner:
    """A :class:`draftwood.models.BlockRunner` of a :class:`MaskedBlockDrafter`.

    The whole text is read again in every round, since every position sees every other. What depends on the source alone is
    kept: its states, the layers' keys and values of them, and what the positions' questions found. The number of masked
    positions is part of what the model reads, so another ``count`` gives other scores.

    Args:
        model: in evaluation mode.
        block: the longest block; ``model.config.block`` if None.

    Raises:
        ConfigError: a block that is not positive, or longer than the positions of the model allow.
    """

    reads_source = True

    def __init__(self, model: MaskedBlockDrafter, *, block: int | None = None) -> None:
        config, room = model.config, int(model.positions.num_embeddings)
        self.block = int(config.block) if block is None else block
        if not 1 <= self.block < room:
            raise ConfigError(f"a block of {self.block} masked positions was asked for; the model takes 1 to {room - 1}")
        self.model = model
        self.vocab_size = int(config.vocab_size)
        self.max_length: int | None = room - self.block
        self.max_source: int | None = int(config.max_position_embeddings)
        self.device = model.device
        self.forward_seconds = 0.0
        self._pad = int(config.pad_token_id)
        self._never = torch.tensor(unwanted(config, config.mask_token_id), device=self.device)
        self._sources: list[list[int]] = []
        self._texts: list[list[int]] = []
        self._source: Source | None = None
        self._layers = [layer_of(part) for part in model.layers]
        self._head = turned(model.encoder.embed_tokens.weight), None
        self._memory: list[tuple[Tensor, Tensor]] = []
        self._round = BlockRound()

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """As :meth:`draftwood.models.Runner.start`; the sources are encoded in the first round.

        Raises:
            ConfigError: not as many sources as texts, or an empty one.
            CacheError: a source longer than the encoder's positions.
        """
        if len(sources) != len(texts) or not all(sources):
            raise ConfigError(f"{sum(map(bool, sources))} sources came for {len(texts)} texts: give every text its source")
        longest = max(map(len, sources), default=0)
        if self.max_source is not None and longest > self.max_source:
            raise CacheError(f"a source has {longest} tokens, but the drafter reads {self.max_source}: shorten it")
        self._sources = [list(source) for source in sources]
        self._texts = [list(text) for text in texts]
        self._source, self._round = None, BlockRound()

    def ahead(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        self._round.begin(root, count, self.block)
        start = perf_counter()
        # Nothing is drafted for a row whose text leaves no room for a block, so that its scores do not matter.
        texts = [[*text, last][: self.max_length] for text, last in zip(self._texts, root.tolist(), strict=True)]
        prefix, mask = self._padded(texts)
        with torch.inference_mode():
            source = self._encoded(prefix.shape[1] + count)
            hidden, seen = self.model.entered(source, prefix, mask, count)
            scores = product(self._read(hidden, seen, source)[:, -count:], self._head)
            scores[..., self._never] = -torch.inf
        self.forward_seconds += perf_counter() - start
        return scores

    def _read(
        self, x: Float[Tensor, "row token width"], seen: Bool[Tensor, "row token"] | None, source: Source
    ) -> Float[Tensor, "row token width"]:
        """The model's layers."""
        here, there = _bias(seen, x.dtype), _bias(source.mask, x.dtype)
        for layer, memory in zip(self._layers, self._memory, strict=True):
            x = layer_norm(x + attend(*own(layer, x), here, layer.scales[0], layer.own_out), *layer.own_norm)
            x = layer_norm(x + ask(layer, x, memory, there), *layer.source_norm)
            x = layer_norm(x + feed(layer, x), *layer.last_norm)
        return x

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        return self._round.answer(self, tokens, depths)

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        for text, new in zip(self._texts, self._round.end(nodes, pending), strict=True):
            text.extend(new)

    def select(self, rows: Sequence[int]) -> None:
        self._sources = [self._sources[r] for r in rows]
        self._texts = [self._texts[r] for r in rows]
        if self._source is not None:
            index = torch.tensor(list(rows), device=self.device)
            self._source = self._source.select(index)
            self._memory = [(keys[index], values[index]) for keys, values in self._memory]

    def _encoded(self, positions: int) -> Source:
        """The sources, and what the first ``positions`` positions ask them; asked in portions, as texts grow slowly."""
        if self._source is None:
            self._source = self.model.encode(*self._padded(self._sources))
            self._memory = source_memory(self._layers, self._source.states)
        known = 0 if self._source.answers is None else self._source.answers.shape[1]
        if known < positions:
            room = int(self.model.positions.num_embeddings)
            self._source = self.model.answered(self._source, min(room, positions + self.block))
        return self._source

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "row longest"], Int[Tensor, "row longest"] | None]:
        """Rows filled up on the right, and 1 where they hold tokens; no such mask where all are equally long."""
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        tokens = torch.tensor([[*row, *[self._pad] * (longest - len(row))] for row in rows], device=self.device)
        if min(lengths) == longest:
            return tokens, None
        place = torch.arange(longest, device=self.device)
        return tokens, (place < torch.tensor(lengths, device=self.device).unsqueeze(1)).long()


def _bias(seen: Bool[Tensor, "row key"] | None, dtype: torch.dtype) -> Float[Tensor, "row 1 1 key"] | None:
    """What attention adds so that padding is not seen."""
    if seen is None:
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)[:, None, None]
