"""Drafters: each grows a tree of likely continuations of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.sampling import Sampler
from draftwood.core.tree import DraftTree
from draftwood.runners.protocols import Prefix


@runtime_checkable
class Drafter(Protocol):
    """Grows one tree per row and round.

    The existence of a drawn node may depend on anything except its own token and the tokens below it. Shared-noise and
    point-mass trees are free of this rule.

    Attributes:
        name: the name on the command line.
        draw: how siblings are chosen above temperature 0 (at temperature 0 every tree is a point mass).
        max_length: the longest text in tokens, None if unlimited.
        forward_seconds: wall time of the draft model's forwards.
    """

    @property
    def name(self) -> str: ...

    @property
    def draw(self) -> Draw: ...

    @property
    def max_length(self) -> int | None: ...

    @property
    def forward_seconds(self) -> float: ...

    def clear(self, *, keep: bool = False) -> None:
        """Remove all rows, as :meth:`draftwood.runners.protocols.Runner.clear` does."""
        ...

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """Append rows: prompts without their last token, and the encoder's inputs. Only between rounds."""
        ...

    def prefill(
        self,
        text: Sequence[int],
        *,
        prefix: Prefix | None = None,
        hidden: Float[Tensor, "_token width"] | None = None,
    ) -> None:
        """Read the beginning of a text that is added later, as :meth:`draftwood.runners.protocols.Runner.prefill` does."""
        ...

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        """Draft a tree per row below ``root``, no deeper than the row's limit (which may be 0).

        An error of the draft model ends the growth (:attr:`draftwood.core.tree.DraftTree.error`). Nodes that were drawn
        stay, as the rule above demands: a drafter that drops them, or cannot tell which to keep, raises. Nothing is drafted
        after an error until :meth:`clear`.
        """
        ...

    def commit(self, this_round: Round) -> None:
        """Keep the accepted path of the last tree."""
        ...

    def drop(self, rows: Sequence[int]) -> None:
        """Remove rows; the others keep their order. Only between rounds."""
        ...
