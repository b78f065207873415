"""The runner of the masked-block drafter: it reads a source once, and fills one block per round in one pass."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding, pad

from draftwood.core.draft_kind import MASKED_BLOCK
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.scores import Scores
from draftwood.runners.protocols import BlockRunner, Hidden, PerNode, ReadsAtOnce, Seen
from draftwood.runners.rows import Sources, changes, padded_tokens, remaining
from draftwood.runners.seq2seq.bart_decoder import (
    Layer,
    attention_of,
    by_layer,
    layer_of,
    padding_bias,
    product,
    source_memory,
    transposed,
)
from draftwood.sampling.rows import Row

_STEP = 64  # positions; for more of them all sources are read again


@final
class BlockRound:
    """The scores of a round's block.

    A node at depth ``d`` gets the scores of the block at index ``d``, whatever its ancestors are. Beyond the block the
    scores are -inf, so nothing is drafted there.
    """

    def __init__(self) -> None:
        self._scores: Tensor | None = None  # [row, depth, vocab]

    def clear(self) -> None:
        """End the round, or abandon it."""
        self._scores = None

    def scores_of(self, runner: BlockRunner, tokens: PerNode, depths: PerNode) -> Scores:
        """Scores at new nodes; at the root, the first node of a round, ``runner`` makes the forward."""
        if self._scores is None:
            scores = runner.score_block(tokens[:, 0].tolist(), runner.block)
            self._scores = pad(scores, (0, 0, 0, 1), value=-torch.inf)
        device = self._scores.device
        row, depth = torch.arange(len(tokens), device=device).unsqueeze(1), torch.as_tensor(depths, device=device)
        return Scores(self._scores[row, depth.clamp(max=runner.block)])


def check_count(count: int, block: int) -> None:
    """Raise a ConfigError if the number of tokens is not in 1 to ``block``."""
    if not 1 <= count <= block:
        raise ConfigError(f"a block of {count} tokens does not fit the draft: give 1 to {block}")


@final
class MaskedBlockRunner(ReadsAtOnce):
    """A :class:`draftwood.runners.protocols.BlockRunner` of a masked-block drafter.

    Every round reads the whole text again, because every position sees every other. Everything that depends on the source
    alone is stored: its states, their keys and values, and the attention of masked positions. The scores depend on the
    number of masked positions, ``count``.

    Args:
        model: a drafter in evaluation mode.
        block: the longest block; ``model.config.block`` if None.

    Raises:
        ConfigError: the block is not positive or exceeds the positions of the model.
    """

    engine = "torch"
    kind = MASKED_BLOCK
    pads = True

    def __init__(self, model: Any, *, block: int | None = None) -> None:
        config = model.config
        self.model = model
        self._limit(int(config.block) if block is None else block)
        self.device, self.vocab_size, self.max_source = model.device, config.vocab_size, config.max_position_embeddings
        self.forward_seconds = 0.0
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        never = {config.mask_token_id, config.pad_token_id, config.decoder_start_token_id} - {None, *ends}
        self._forbidden = torch.tensor(sorted(never), device=self.device)  # no text contains them
        self._passes = MaskedBlockPasses(model)
        self._begin()

    def _begin(self) -> None:
        self._rows: list[Row] = []
        self._sources: Sources | None = None  # of the first rows
        self._round = BlockRound()

    def _limit(self, block: int) -> None:
        room = int(self.model.positions.num_embeddings)
        if not 1 <= block < room:
            raise ConfigError(f"the block has {block} masked positions, but the model takes 1 to {room - 1}")
        self.block = block
        self.max_length: int | None = room - block

    def clear(self) -> None:
        self._begin()

    def set_rows(self, rows: Sequence[Row]) -> None:
        """As :meth:`draftwood.runners.protocols.Runner.set_rows`; the sources are encoded in the next round."""
        gone, new = changes(self._rows, rows)
        lengths = [len(row.source) for row in new]
        if not all(lengths):
            raise ConfigError(f"{sum(map(bool, lengths))} sources came for {len(new)} texts: give every text its source")
        longest = max(lengths, default=0)
        if longest > self.max_source:
            raise CacheError(f"a source has {longest} tokens, but the drafter reads {self.max_source}: shorten it")
        if gone and self._sources is not None:
            known = len(self._sources.mask)
            kept = [row for row in remaining(range(len(self._rows)), gone) if row < known]
            self._sources = self._sources.picked(kept) if kept else None
        self._rows = list(rows)

    def longer(self, block: int) -> MaskedBlockRunner:
        """As :meth:`draftwood.runners.protocols.BlockRunner.longer`, also beyond the block of training."""
        found = copy.copy(self)
        found._limit(block)
        found._begin()
        return found

    def score_block(self, root: Sequence[int], count: int) -> Float[Tensor, "row count vocab"]:
        check_count(count, self.block)
        start = perf_counter()
        # Nothing is drafted for a row whose text leaves no room for a block, so its scores are not used.
        texts = [row.tokens[: self.max_length] for row in self._rows]
        with torch.inference_mode():
            scores = self._filled(self._read(max(map(len, texts)) + count), texts, count)
            scores[..., self._forbidden] = -torch.inf
        self.forward_seconds += perf_counter() - start
        return scores

    def _read(self, positions: int) -> Sources:
        """The sources of all rows, with answers of the first ``positions`` masked positions or more."""
        found = self._sources
        if found is None or found.answers is None or found.answers.shape[1] < positions:
            room = int(self.model.positions.num_embeddings)
            found = self._new(self._rows, min(room, -(-positions // _STEP) * _STEP))
        elif len(found.mask) < len(self._rows):
            found = found.joined(self._new(self._rows[len(found.mask) :], found.answers.shape[1]))
        self._sources = found
        return found

    def _new(self, rows: Sequence[Row], positions: int) -> Sources:
        padding = int(self.model.config.pad_token_id)
        return self._passes.read(*padded_tokens([row.source for row in rows], padding, self.device), positions)

    def _filled(self, sources: Sources, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        """Scores of the ``count`` tokens after each text."""
        width, config = max(map(len, texts)), self.model.config
        block, padding = [int(config.mask_token_id)] * count, int(config.pad_token_id)
        tokens = [[*text, *[padding] * (width - len(text)), *block] for text in texts]
        positions = [[*(min(i, len(t) - 1) for i in range(width)), *range(len(t), len(t) + count)] for t in texts]
        seen = [[*(i < len(text) for i in range(width)), *[True] * count] for text in texts]
        given, at, real = (torch.tensor(part, device=self.device) for part in (tokens, positions, seen))
        return self._passes.fill(sources, given, at, real, count)

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        return self._round.scores_of(self, tokens, depths)

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._round.clear()


@final
class MaskedBlockPasses:
    """One function reads sources, once, and the other fills blocks after texts. Weights of small models are copied."""

    def __init__(self, model: Any) -> None:
        self._encoder, self._layers = model.encoder, [layer_of(part) for part in model.layers]
        self._question = attention_of(model.question)
        self._table, self._words = model.positions.weight, model.encoder.embed_tokens.weight
        self._words_scale, self._head = float(model.encoder.embed_scale), (transposed(self._words), None)

    def read(self, tokens: Int[Tensor, "row source"], mask: Bool[Tensor, "row source"], positions: int) -> Sources:
        """Encode padded sources, and answer the first masked positions: their attention to the source."""
        ask, masked = self._question, torch.arange(positions, device=tokens.device)
        states = self._encoder(input_ids=tokens, attention_mask=mask.long())[0]
        embedded = embedding(tokens, self._words) * self._words_scale + self._encoder.embed_positions(tokens.shape)
        queries = embedding(masked, self._table).unsqueeze(0).expand(tokens.shape[0], -1, -1)
        keys, values = ask.memory(embedded)
        answers = ask.attend(ask.query(queries), keys, values, padding_bias(mask, self._words.dtype))
        return Sources(mask, memory=source_memory(self._layers, states), answers=answers)

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
            x = layer.read(x, partial(_attend_within, layer, mask), memory, source_mask, norm_first=False)
        return product(x[:, -count:], self._head)


def _attend_within(layer: Layer, mask: Tensor | None, x: Tensor) -> Float[Tensor, "row token width"]:
    """Self-attention among the tokens of ``x`` alone."""
    query, keys, values = layer.own.project(x)
    return layer.own.attend(query, keys, values, mask)
