"""Verifiers: each keeps one path of a draft tree so that the output follows the target's own distribution."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.core.verifiers import VERIFIERS, Reads


@runtime_checkable
class Verifier(Protocol):
    """A pure function from a scored tree to a verdict.

    Attributes:
        name: as written on the command line.
        lossless: the output follows the target's distribution exactly.
        draws: the ways of choosing siblings under which that holds.
        reads: the target's probabilities, or its own choice (``argmax``) alone. With the second, a seed gives the text of
            plain decoding.
        greedy_only: it is for temperature 0 only. If it reads probabilities, it is given the target's distributions as
            they are, not as point masses.
    """

    name: str
    lossless: bool
    draws: frozenset[Draw]
    reads: Reads
    greedy_only: bool

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """Keep one path of each row's tree and draw the token after it."""
        ...


class Known:
    """A verifier of :data:`draftwood.core.verifiers.VERIFIERS`; its attributes are the facts of that table."""

    name: str
    lossless: bool
    draws: frozenset[Draw]
    reads: Reads
    greedy_only: bool

    def __init_subclass__(cls, name: str) -> None:
        spec = VERIFIERS[name]
        cls.name, cls.lossless, cls.draws = spec.name, spec.lossless, spec.draws
        cls.reads, cls.greedy_only = spec.reads, spec.greedy_only
