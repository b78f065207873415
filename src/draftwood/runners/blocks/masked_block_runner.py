"""The runner of the masked-block drafter: it reads a source once, and fills one block per round in one pass."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.scores import Scores
from draftwood.core.settings import Backend
from draftwood.runners.blocks.bart_network import BartBlocks, BlockNetwork
from draftwood.runners.blocks.block_round import BlockRound, check_count, special_tokens
from draftwood.runners.blocks.openvino_network import OpenVinoBlocks
from draftwood.runners.protocols import Hidden, PerNode, ReadsAtOnce, Seen
from draftwood.runners.rows import changes
from draftwood.sampling.rows import Row


@final
class MaskedBlockRunner(ReadsAtOnce):
    """A :class:`draftwood.runners.protocols.BlockRunner` of a masked-block drafter.

    Every round reads the whole text again, because every position sees every other. Everything that depends on the source
    alone is stored: its states, their keys and values, and the attention of masked positions. The scores depend on the
    number of masked positions, ``count``.

    Args:
        model: a drafter in evaluation mode.
        engine: the backend.
        block: the longest block; ``model.config.block`` if None.

    Raises:
        ConfigError: the block is not positive or exceeds the positions of the model; OpenVINO is not installed, or does not
            support the model's number format or device.
    """

    reads_source = True
    pads = True

    def __init__(self, model: Any, *, engine: Backend = "torch", block: int | None = None) -> None:
        config = model.config
        self.model = model
        self.engine = engine
        self._limit(int(config.block) if block is None else block)
        self.device = model.device
        self.forward_seconds = 0.0
        self._forbidden = torch.tensor(special_tokens(config, config.mask_token_id), device=self.device)
        self._rows: list[Row] = []
        self._network: BlockNetwork = OpenVinoBlocks(model) if engine == "openvino" else BartBlocks(model)
        self._round = BlockRound()

    def _limit(self, block: int) -> None:
        room = int(self.model.positions.num_embeddings)
        if not 1 <= block < room:
            raise ConfigError(f"the block has {block} masked positions, but the model takes 1 to {room - 1}")
        self.block = block
        self.max_length: int | None = room - block

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    @property
    def max_source(self) -> int | None:
        return int(self.model.config.max_position_embeddings)

    def clear(self) -> None:
        self._network.clear()
        self._rows = []
        self._round.clear()

    def set_rows(self, rows: Sequence[Row]) -> None:
        """As :meth:`draftwood.runners.protocols.Runner.set_rows`; the sources are encoded in the next round."""
        gone, new = changes(self._rows, rows)
        sources = [list(row.source) for row in new]
        if not all(sources):
            raise ConfigError(f"{sum(map(bool, sources))} sources came for {len(new)} texts: give every text its source")
        longest = max(map(len, sources), default=0)
        if self.max_source is not None and longest > self.max_source:
            raise CacheError(f"a source has {longest} tokens, but the drafter reads {self.max_source}: shorten it")
        if gone:
            self._network.drop(gone)
        self._network.add(sources)
        self._rows = list(rows)

    def longer(self, block: int) -> MaskedBlockRunner:
        """As :meth:`draftwood.runners.protocols.LongBlockRunner.longer`, also beyond the block of training."""
        found = copy.copy(self)
        found._limit(block)
        found._network, found._rows, found._round = self._network.fresh(), [], BlockRound()
        return found

    def score_block(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        check_count(count, self.block)
        start = perf_counter()
        # Nothing is drafted for a row whose text leaves no room for a block, so its scores are not used.
        texts = [row.tokens[: self.max_length] for row in self._rows]
        with torch.inference_mode():
            scores = self._network.scores(texts, count)
            scores[..., self._forbidden] = -torch.inf
        self.forward_seconds += perf_counter() - start
        return scores

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        return self._round.scores_of(self, tokens, depths)

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._round.clear()
