"""Parallel drafting with a causal model: it reads mask tokens after the root, and each predicts the token after it.

Source: PARD, An et al. 2025, arXiv 2504.18583. The model was trained with masks in place of unknown tokens. The first
prediction is the usual one, from the root itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.core.scores import Scores
from draftwood.runners.blocks.block_round import BlockRound, special_tokens
from draftwood.runners.protocols import ModelRunner, Prefix, Runner


@final
class CausalBlockRunner:
    """A :class:`draftwood.runners.protocols.BlockRunner` of a causal model.

    Its inner runner reads the root and ``count - 1`` mask tokens as a chain, and keeps only the root. Accepted tokens are
    read in the next round.

    Args:
        runner: the model's runner, made with ``drafts=True``.
        mask_token: the token in place of unknown tokens; it is never proposed.
        block: the longest block.

    Raises:
        ConfigError: the block is not positive, or the model does not know the mask token.
    """

    reads_source = False
    pads = True

    def __init__(self, runner: ModelRunner, mask_token: int, block: int) -> None:
        known = int(runner.model.get_input_embeddings().weight.shape[0])
        if not 0 <= mask_token < known:
            raise ConfigError(f"the mask token is {mask_token}, but the draft knows tokens 0 to {known - 1}")
        if block < 1:
            raise ConfigError(f"the block has {block} tokens: give 1 or more")
        self.runner = runner
        self.model = runner.model
        self.mask_token = mask_token
        self.block = block
        self.vocab_size = runner.vocab_size
        self.max_length = runner.max_length
        self.device = runner.device
        self.forward_seconds = 0.0
        forbidden = [token for token in special_tokens(self.model.config, mask_token) if token < self.vocab_size]
        self._forbidden = torch.tensor(forbidden, dtype=torch.long, device=self.device)
        self._round = BlockRound()

    @property
    def engine(self) -> str:
        return self.runner.engine

    @property
    def token_bytes(self) -> int:
        return int(getattr(self.runner, "token_bytes", 0))

    @property
    def network(self) -> nn.Module:
        return self.runner.network

    def clear(self, *, keep: bool = False) -> None:
        self.runner.clear(keep=keep)
        self._round.clear()

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self.runner.add(texts)

    def prefill(
        self,
        text: Sequence[int],
        *,
        prefix: Prefix | None = None,
        hidden: Float[Tensor, "_token width"] | None = None,
    ) -> Float[Tensor, "_token width"] | None:
        return self.runner.prefill(text, prefix=prefix)

    def score_block(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        self._round.begin(root, count, self.block)
        rows = len(root)
        tokens = root.unsqueeze(1).repeat(1, count)
        tokens[:, 1:] = self.mask_token
        depths = torch.arange(count, device=self.device).expand(rows, -1)
        chain = torch.ones(count, count, dtype=torch.bool, device=self.device).tril_().expand(rows, -1, -1)
        scores = self.runner.extend(tokens, depths, chain).logits.index_fill(-1, self._forbidden, -torch.inf)
        self.forward_seconds = self.runner.forward_seconds
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
        new = self._round.end(nodes, pending)
        read = [len(kept[:1]) for kept in nodes]  # 1 for the root, 0 if nothing was scored in this round
        self.runner.commit([[0] * n for n in read], [tokens[n:] for tokens, n in zip(new, read, strict=True)])

    def drop(self, rows: Sequence[int]) -> None:
        self.runner.drop(rows)


def causal_draft(runner: Runner) -> Runner:
    """The runner of a draft model; a block runner if the configuration has ``mask_token_id`` and ``draft_block``.

    ``draftwood train draft --parallel`` makes such models.
    """
    if not isinstance(runner, ModelRunner):
        return runner
    mask, block = (getattr(runner.model.config, name, None) for name in ("mask_token_id", "draft_block"))
    return runner if mask is None or block is None else CausalBlockRunner(runner, mask, block)
