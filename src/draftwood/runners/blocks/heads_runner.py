"""The runner of heads on the target's last hidden state: one small product per block, and no cache."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.errors import PairingError
from draftwood.core.scores import Scores
from draftwood.runners.blocks.block_round import BlockRound, special_tokens
from draftwood.runners.blocks.heads import HeadsDrafter
from draftwood.runners.pairing import known_hidden
from draftwood.runners.protocols import ReadsAtOnce
from draftwood.runners.rows import remaining


@final
class HeadsRunner(ReadsAtOnce):
    """A :class:`draftwood.runners.protocols.BlockRunner` of a :class:`HeadsDrafter`.

    Before its first commit a row has no state. Its scores are then -inf, so nothing is drafted.

    Args:
        heads: heads in evaluation mode.
        target: their target; its runner must return the input of the output embedding as hidden states.

    Raises:
        PairingError: the target's states have another width.
    """

    def __init__(self, heads: HeadsDrafter, target: Any) -> None:
        self._output: Tensor = target.get_output_embeddings().weight
        wanted, width = int(heads.config.d_model), int(self._output.shape[1])
        if wanted != width:
            raise PairingError(
                f"the heads read states of width {wanted}, the target's have {width}: give the target of their training"
            )
        self.heads = heads
        self.max_length: int | None = None
        self.pads = True
        self.reads_source = bool(target.config.is_encoder_decoder)
        self.device = target.device
        self.forward_seconds = 0.0
        self._forbidden = torch.tensor(special_tokens(target.config), dtype=torch.long, device=self.device)
        self._round = BlockRound()
        self._states: list[Float[Tensor, "width"] | None] = []

    @property
    def block(self) -> int:
        return int(self.heads.config.block)

    @property
    def vocab_size(self) -> int:
        return int(self._output.shape[0])

    def clear(self, *, keep: bool = False) -> None:
        self._round.clear()
        self._states = []

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._states += [None] * len(texts)

    def drop(self, rows: Sequence[int]) -> None:
        self._states = remaining(self._states, rows)

    def score_block(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        self._round.begin(root, count, self.block)
        start = perf_counter()
        known = [row for row, state in enumerate(self._states) if state is not None]
        scores = torch.full((len(root), count, self.vocab_size), -torch.inf, device=self.device, dtype=self._output.dtype)
        if known:
            with torch.inference_mode():
                states = torch.stack([state for state in self._states if state is not None])
                scores[known] = self.heads(states, self._output, count)
                scores[..., self._forbidden] = -torch.inf
        self.forward_seconds += perf_counter() - start
        return scores

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Scores:
        return self._round.scores_of(self, tokens, depths)

    def commit(
        self,
        nodes: Sequence[Sequence[int]],
        pending: Sequence[Sequence[int]],
        hidden: Sequence[Float[Tensor, "_token width"]] | None = None,
    ) -> None:
        """End the round with the hidden states that predicted the next roots; raises a PairingError without them."""
        self._states = [row[-1] for row in known_hidden(hidden, "hidden=True")]
        self._round.end(nodes, pending)
