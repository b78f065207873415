"""Prompt lookup: the continuation of the last place where the text's ending stood before (a point-mass chain).

Source: Saxena 2023, "Prompt Lookup Decoding"; names as in ``transformers`` (``max_matching_ngram_size``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.noise import Choices
from draftwood.rounds import Round
from draftwood.sampling import Law
from draftwood.tree import DraftTree, Draw, TreeBuilder


def lookup(text: Sequence[int], count: int, max_ngram: int) -> list[int]:
    """Up to ``count`` tokens that followed the latest earlier match of the longest possible ending of ``text``."""
    n = len(text)
    for size in range(min(max_ngram, n - 1), 0, -1):
        ending = list(text[n - size :])
        for at in range(n - size - 1, -1, -1):
            if list(text[at : at + size]) == ending:
                return list(text[at + size : at + size + count])
    return []


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

    def __init__(self, length: int, max_ngram: int = 3) -> None:
        self.length = length
        self.max_ngram = max_ngram
        self._sources: list[list[int]] = []

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._sources = [list(source) for source in sources] or [[] for _ in texts]  # the law holds the texts

    def draft(self, root: Int[Tensor, "row"], law: Law, choices: Choices, limits: Sequence[int]) -> DraftTree:
        found = [
            lookup([*source, *text], min(self.length, limit), min(self.max_ngram, len(text)))
            for source, text, limit in zip(self._sources, law.texts, limits, strict=True)
        ]
        depth = max(map(len, found))
        builder = TreeBuilder(root, 1 + depth)
        parents = torch.zeros(len(found), 1, dtype=torch.long, device=root.device)
        for i in range(depth):
            column = torch.tensor([[f[i]] if i < len(f) else [-1] for f in found], device=root.device)
            builder.add(column, parents)
        return builder.build(branching=1, draw=self.draw, draft_laws=None)

    def commit(self, this_round: Round) -> None:
        """Nothing to learn: the text itself is the memory."""

    def select(self, rows: Sequence[int]) -> None:
        self._sources = [self._sources[r] for r in rows]
