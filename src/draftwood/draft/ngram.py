"""Prompt lookup: the continuation of the last place where the text's ending stood before (a point-mass chain)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.sampling import Sampler
from draftwood.core.tree import DraftTree, Draw, TreeBuilder
from draftwood.draft.lookup import MAX_NGRAM, Endings


@final
class NGram:
    """Drafts a chain of up to ``length`` tokens from the text so far, and from what an encoder reads; no draft model.

    Args:
        length: tokens drafted at most.
        max_ngram: the longest ending that is looked up.
    """

    name = "ngram"
    draw = Draw.POINT_MASS
    max_length: int | None = None
    forward_seconds = 0.0

    def __init__(self, length: int, max_ngram: int = MAX_NGRAM) -> None:
        self.length = length
        self.max_ngram = max_ngram
        self._endings: list[Endings] = []

    def clear(self) -> None:
        self._endings = []

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        # The sampler holds the texts.
        self._endings += [Endings(source, self.max_ngram) for source in sources or [()] * len(texts)]

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        found = [
            endings.follow(text, min(self.length, limit), sampler.vocab)[0]
            for endings, text, limit in zip(self._endings, sampler.texts, limits, strict=True)
        ]
        found = [tokens[: sampler.permitted(row, tokens)] for row, tokens in enumerate(found)]
        depth = max(map(len, found))
        builder = TreeBuilder(root, 1 + depth)
        parents = torch.zeros(len(found), 1, dtype=torch.long, device=root.device)
        for i in range(depth):
            column = torch.tensor([[f[i]] if i < len(f) else [-1] for f in found], device=root.device)
            builder.add(column, parents)
        return builder.build(branching=1, draw=self.draw, draft_log_probs=None)

    def commit(self, this_round: Round) -> None:
        """Nothing to learn: the text itself is the memory."""

    def drop(self, rows: Sequence[int]) -> None:
        self._endings = [endings for row, endings in enumerate(self._endings) if row not in rows]
