"""Heads on the target's last hidden state as a runner: a block from one small product, and no memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.errors import PairingError
from draftwood.runners.blocks.block_round import BlockRound, unwanted
from draftwood.runners.blocks.heads import HeadsDrafter
from draftwood.runners.protocols import Runner


@runtime_checkable
class StateRunner(Runner, Protocol):
    """A runner that shows hidden states.

    Attributes:
        model: the ``transformers`` model behind it.
        keep_states: whether it keeps them.
        state: after ``commit``, what its output embedding got at the last committed node of each row, which predicted the
            present root; None before the first one.
    """

    model: Any
    keep_states: bool
    state: Float[Tensor, "row width"] | None


@final
class HeadsRunner:
    """A :class:`draftwood.runners.protocols.BlockRunner` of a :class:`HeadsDrafter`, beside the target that the text is
    decoded with.

    Before the target's first commit there is no state: then all scores are -inf, and nothing is drafted.

    Args:
        heads: in evaluation mode.
        target: the runner of their target; from now on it keeps its states.

    Raises:
        PairingError: a target that shows no states, or states of another width.
    """

    def __init__(self, heads: HeadsDrafter, target: Runner) -> None:
        if not isinstance(target, StateRunner):
            raise PairingError(
                f"heads need the target's hidden states, which {type(target).__name__} does not keep: give another drafter"
            )
        self._output: Tensor = target.model.get_output_embeddings().weight
        wanted, width = int(heads.config.d_model), int(self._output.shape[1])
        if wanted != width:
            raise PairingError(
                f"the heads read states of width {wanted}, the target's have {width}: give the target of their training"
            )
        target.keep_states = True
        self.heads = heads
        self.block = int(heads.config.block)
        self.vocab_size = int(self._output.shape[0])
        self.max_length: int | None = None
        self.reads_source = target.reads_source
        self.device = target.device
        self.forward_seconds = 0.0
        self._target = target
        self._never = torch.tensor(unwanted(target.model.config), dtype=torch.long, device=self.device)
        self._round = BlockRound()

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """Nothing to read: the target does."""
        self._round = BlockRound()

    def score_block(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        self._round.begin(root, count, self.block)
        start = perf_counter()
        state = self._target.state
        if state is None:
            return torch.full((len(root), count, self.vocab_size), -torch.inf, device=self.device)
        with torch.inference_mode():
            scores: Tensor = self.heads(state, self._output, count)
            scores[..., self._never] = -torch.inf
        self.forward_seconds += perf_counter() - start
        return scores

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        return self._round.answer(self, tokens, depths)

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        self._round.end(nodes, pending)

    def select(self, rows: Sequence[int]) -> None:
        """Nothing to drop: the target does."""
