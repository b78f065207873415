"""Chains from anything that proposes the next tokens of a text: the shortest way to a custom drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol, final, runtime_checkable

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree, TreeBuilder
from draftwood.sampling.rows import Row
from draftwood.sampling.sampler import Sampler


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
class ProposedChains:
    """Drafts a chain per row from a :class:`Proposer`. Its tokens are certain, so every verifier is exact for it.

    Args:
        name: the name on the command line.
        make: makes the proposer of a row.
        length: the most tokens of a draft.
    """

    draw = Draw.POINT_MASS
    runner = None

    def __init__(self, name: str, make: Callable[[Row], Proposer], length: int) -> None:
        self.name = name
        self.length = length
        self._make = make

    def draft(self, root: Sequence[int], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        builder = TreeBuilder(root)
        builder.add_chains([self._proposed(number, limit, sampler) for number, limit in enumerate(limits)])
        return builder.build(draw=self.draw)

    def _proposed(self, number: int, limit: int, sampler: Sampler) -> list[int]:
        """A row's proposal, up to its limit and before a token that the target lacks, or a grammar or bias forbids."""
        row, count = sampler.rows[number], min(self.length, limit)
        proposed = row.state(self, lambda: self._make(row)).propose(row.tokens, count)[:count]
        tokens = list(takewhile(lambda token: 0 <= token < sampler.vocab, proposed))
        return tokens[: sampler.permitted(number, tokens)]

    def commit(self, this_round: Round) -> None:
        """Nothing to keep: rows hold their texts."""
