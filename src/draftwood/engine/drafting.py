"""The drafter of a batch, whose errors may cost its drafts only."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

from draftwood.core.draws import FREE_DRAWS
from draftwood.core.errors import ModelError
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.draft import Drafter
from draftwood.draft.none import FAILED, root_alone
from draftwood.runners.protocols import Runner
from draftwood.sampling.rows import Row
from draftwood.sampling.sampler import Sampler
from draftwood.verify import Verifier

_LOG = logging.getLogger(__name__)


@final
class Drafting:
    """A drafter and its draft model.

    Args:
        drafter: grows the trees.
        verifier: verifies them.
        tolerant: after an error nothing is drafted until :meth:`clear`, and the texts go on by plain decoding. Otherwise
            errors are raised.

    Attributes:
        tolerant: as given.
        errors: number of errors so far, those of rounds included in which scores of the draft were NaN.
        lost: why rows with drawn trees end with this round, which an error has lost; None in any other round.
    """

    def __init__(self, drafter: Drafter, verifier: Verifier, *, tolerant: bool) -> None:
        self._drafter = drafter
        self._must_keep = drafter.draw not in FREE_DRAWS and verifier.reads != "argmax"
        self.tolerant = tolerant
        self._works = True
        self.errors = 0
        self.lost: ModelError | None = None

    @property
    def runner(self) -> Runner | None:
        """The draft model; None without one, and after an error."""
        return self._drafter.runner if self._works else None

    @property
    def forward_seconds(self) -> float:
        """Wall time of the draft model's forwards so far."""
        return 0.0 if self._drafter.runner is None else self._drafter.runner.forward_seconds

    @contextmanager
    def errors_cost_drafts(self) -> Iterator[None]:
        """A context for what is done with the draft model."""
        try:
            yield
        except Exception as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        if not self.tolerant:
            raise error
        self._works = False
        self.errors += 1
        _LOG.warning("drafter %s failed; nothing is drafted until the batch is empty", self._drafter.name, exc_info=error)

    def clear(self) -> None:
        """Remove all rows, as :meth:`draftwood.runners.protocols.Runner.clear` does; the drafter works again."""
        self._works = True
        if self.runner is not None:
            with self.errors_cost_drafts():
                self.runner.clear()

    def set_rows(self, rows: Sequence[Row]) -> None:
        """As :meth:`draftwood.runners.protocols.Runner.set_rows`."""
        if self.runner is not None:
            with self.errors_cost_drafts():
                self.runner.set_rows(rows)

    def draft(self, root: Sequence[int], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        """The drafter's trees, with what was drawn before an error.

        An error may depend on the tokens that were drawn. Texts that went on without them would have another distribution.
        """
        self.lost = None
        if not self._works:
            return root_alone(root, FAILED)
        try:
            tree = self._drafter.draft(root, sampler, rng, limits)
        except Exception as error:
            self._stop(error)
            if self._must_keep:
                why = f"the drafter failed and its tree, which was drawn, is lost ({error})"
                self.lost = ModelError(f"{why}: write it again")
            return root_alone(root, FAILED)
        if tree.error is not None:
            self._stop(tree.error)
        return tree

    def look_at(self, sampler: Sampler) -> None:
        """Count, or raise, that scores of the draft were NaN."""
        if (error := sampler.checks.draft_error) is not None:
            if not self.tolerant:
                raise error
            self.errors += 1

    def commit(self, this_round: Round) -> None:
        """End the round."""
        if self._works:
            with self.errors_cost_drafts():
                self._drafter.commit(this_round)
