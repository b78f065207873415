"""The round of a block runner: one forward scores the whole block, and later nodes reuse its scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.core.scores import Scores
from draftwood.runners.protocols import BlockRunner


@final
class BlockRound:
    """The tokens of a round's nodes and the scores of its block.

    A node at depth ``d`` gets the scores of the block at index ``d``, whatever its ancestors are. Beyond the block the
    scores are -inf, so nothing is drafted there.
    """

    def __init__(self) -> None:
        self._nodes: list[Tensor] = []  # [row, n] each
        self._scores: Tensor | None = None  # [row, depth, vocab]

    def clear(self) -> None:
        """Abandon the round."""
        self._nodes, self._scores = [], None

    def begin(self, root: Int[Tensor, "row"], count: int, block: int) -> None:
        """Begin a round with a block of ``count`` tokens; raises a ConfigError if it is not in 1 to ``block``."""
        if not 1 <= count <= block:
            raise ConfigError(f"a block of {count} tokens does not fit the draft: give 1 to {block}")
        self._nodes = [root.unsqueeze(1)]

    def scores_of(self, runner: BlockRunner, tokens: Int[Tensor, "row node"], depths: Int[Tensor, "row node"]) -> Scores:
        """Scores at new nodes; at the root, the first node of a round, ``runner`` makes the forward."""
        if self._scores is None:
            scores = runner.score_block(tokens[:, 0], runner.block)
            self._scores = torch.nn.functional.pad(scores, (0, 0, 0, 1), value=-torch.inf)
            self._nodes.append(tokens[:, 1:])
        else:
            self._nodes.append(tokens)
        row = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
        return Scores(self._scores[row, depths.clamp(max=runner.block)])

    def end(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> list[list[int]]:
        """End the round; returns the tokens that are appended to each row's text (one host sync)."""
        tokens = torch.cat(self._nodes, dim=1).tolist() if self._nodes else [[] for _ in pending]
        self.clear()
        return [[*(row[node] for node in kept), *rest] for row, kept, rest in zip(tokens, nodes, pending, strict=True)]


def special_tokens(config: object, *tokens: int) -> list[int]:
    """Tokens that no text contains: ``tokens``, padding and the decoder's start, except end-of-text tokens."""
    special = (getattr(config, name, None) for name in ("pad_token_id", "decoder_start_token_id"))
    found = {*tokens, *(token for token in special if token is not None)}
    ends = getattr(config, "eos_token_id", None)
    return sorted(found - set(ends if isinstance(ends, list) else [ends]))
