"""Chains from anything that proposes the next tokens of a text: the shortest way to a custom drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.sampling import Sampler
from draftwood.core.tree import DraftTree, TreeBuilder
from draftwood.runners.protocols import ReadsAtOnce
from draftwood.runners.rows import remaining


@runtime_checkable
class Proposer(Protocol):
    """Proposes the next tokens of one text, like a ``CandidateGenerator`` of ``transformers``."""

    def propose(self, text: Sequence[int], count: int) -> Sequence[int]:
        """Up to ``count`` tokens that may follow ``text``, or none.

        Args:
            text: the token ids of prompt and text so far; it only grows from call to call.
            count: the most tokens that are used; it may be 0.
        """
        ...


@final
class ProposedChains(ReadsAtOnce):
    """Drafts a chain per row from a :class:`Proposer`. Its tokens are certain, so every verifier is exact for it.

    Args:
        name: the name on the command line.
        make: makes a row's proposer from its source, which is empty without an encoder.
        length: the most tokens of a draft.
    """

    draw = Draw.POINT_MASS
    max_length: int | None = None
    forward_seconds = 0.0

    def __init__(self, name: str, make: Callable[[Sequence[int]], Proposer], length: int) -> None:
        self.name = name
        self.length = length
        self._make = make
        self._proposers: list[Proposer] = []

    def clear(self, *, keep: bool = False) -> None:
        self._proposers = []

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        # The sampler holds the texts.
        self._proposers += [self._make(source) for source in sources or [()] * len(texts)]

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        rows = zip(self._proposers, sampler.texts, limits, strict=True)
        found = [self._proposed(row, *one, sampler) for row, one in enumerate(rows)]
        depth = max(map(len, found))
        builder = TreeBuilder(root, 1 + depth)
        parents = torch.zeros(len(found), 1, dtype=torch.long, device=root.device)
        for i in range(depth):
            column = torch.tensor([[f[i]] if i < len(f) else [-1] for f in found], device=root.device)
            builder.add(column, parents)
        return builder.build(branching=1, draw=self.draw, draft_log_probs=None)

    def _proposed(self, row: int, proposer: Proposer, text: Sequence[int], limit: int, sampler: Sampler) -> list[int]:
        """A row's proposal, up to its limit and before a token that the target lacks or the settings forbid."""
        count = min(self.length, limit)
        proposed = proposer.propose(text, count)[:count]
        tokens = list(takewhile(lambda token: 0 <= token < sampler.vocab, proposed))
        return tokens[: sampler.permitted(row, tokens)]

    def commit(self, this_round: Round) -> None:
        """Nothing to keep: the sampler holds the text."""

    def drop(self, rows: Sequence[int]) -> None:
        self._proposers = remaining(self._proposers, rows)
