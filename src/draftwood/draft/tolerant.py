"""A drafter whose errors cost its drafts and not the texts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.sampling import Sampler
from draftwood.core.tree import DraftTree
from draftwood.draft import Drafter
from draftwood.draft.none import FAILED, root_alone
from draftwood.runners.protocols import Prefix

_LOG = logging.getLogger(__name__)


@final
class TolerantDrafter:
    """Drafts nothing from an error of another drafter on until :meth:`clear`: the texts go on by plain decoding.

    Args:
        drafter: the other drafter.

    Attributes:
        drafter: the other drafter.
        errors: number of errors so far.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self._works = True
        self.errors = 0

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def draw(self) -> Draw:
        return self.drafter.draw

    @property
    def max_length(self) -> int | None:
        return self.drafter.max_length

    @property
    def forward_seconds(self) -> float:
        return self.drafter.forward_seconds

    def _try(self, call: Callable[[], object]) -> None:
        if not self._works:
            return
        try:
            call()
        except Exception as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        self._works = False
        self.errors += 1
        _LOG.warning("drafter %s failed; nothing is drafted until the batch is empty", self.name, exc_info=error)

    def clear(self, *, keep: bool = False) -> None:
        keep, self._works = keep and self._works, True
        self._try(lambda: self.drafter.clear(keep=keep))

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._try(lambda: self.drafter.add(texts, sources))

    def prefill(
        self,
        text: Sequence[int],
        *,
        prefix: Prefix | None = None,
        hidden: Float[Tensor, "_token width"] | None = None,
    ) -> None:
        self._try(lambda: self.drafter.prefill(text, prefix=prefix, hidden=hidden))

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        """A tree, with what was drawn before an error; an error that lost it is raised once."""
        if not self._works:
            return root_alone(root, FAILED)
        try:
            tree = self.drafter.draft(root, sampler, rng, limits)
        except Exception as error:
            self._stop(error)
            raise
        if tree.error is not None:
            self._stop(tree.error)
        return tree

    def commit(self, this_round: Round) -> None:
        self._try(lambda: self.drafter.commit(this_round))

    def drop(self, rows: Sequence[int]) -> None:
        self._try(lambda: self.drafter.drop(rows))
