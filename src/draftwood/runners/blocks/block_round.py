"""The round of a block runner: one forward scores the whole block, and later nodes reuse its scores."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.core.scores import Scores
from draftwood.runners.protocols import BlockRunner, PerNode


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
            self._scores = torch.nn.functional.pad(scores, (0, 0, 0, 1), value=-torch.inf)
        device = self._scores.device
        row, depth = torch.arange(len(tokens), device=device).unsqueeze(1), torch.as_tensor(depths, device=device)
        return Scores(self._scores[row, depth.clamp(max=runner.block)])


def check_count(count: int, block: int) -> None:
    """Raise a ConfigError if the number of tokens is not in 1 to ``block``."""
    if not 1 <= count <= block:
        raise ConfigError(f"a block of {count} tokens does not fit the draft: give 1 to {block}")
