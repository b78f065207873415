"""Verifiers: each keeps one path of a draft tree so that the output follows the target's own distribution."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree, Draw

Reads: TypeAlias = Literal["probabilities", "argmax"]
"""What a verifier reads of the target: its probabilities, or only the best token, with noise or without."""


@runtime_checkable
class Verifier(Protocol):
    """A pure function from a scored tree to a verdict.

    Attributes:
        name: as written on the command line.
        lossless: the output follows the target's distribution exactly.
        draws: the ways of choosing siblings under which that holds.
        tolerant: the verifier keeps tokens that are nearly the target's best. At temperature 0 it is given the target's
            distributions as they are, not as point masses.
        reads: under ``"argmax"``, ``target_logp`` may be known up to a constant of each node.
    """

    @property
    def name(self) -> str: ...

    @property
    def lossless(self) -> bool: ...

    @property
    def draws(self) -> frozenset[Draw]: ...

    @property
    def tolerant(self) -> bool: ...

    @property
    def reads(self) -> Reads: ...

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """Keep one path of each row's tree and draw the token after it."""
        ...
