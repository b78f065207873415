"""Controllers by the size of a batch: a forward's costs depend on its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import final

from draftwood.draft.adaptive.acceptance import AcceptanceModel
from draftwood.draft.adaptive.budget import Budget
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.learnt import NOTHING, Knowledge, Learnt
from draftwood.draft.adaptive.lookup import PromptLookup
from draftwood.draft.adaptive.trial import CostTrial


@final
class Controllers:
    """A controller for each number of rows, rounded up to a power of two, and the models that they share.

    Args:
        known: the knowledge of others, to start from.

    Attributes:
        acceptance: the acceptance model of the tree's expander.
        lookup: prompt lookup, with its learnt probabilities.
    """

    def __init__(self, known: Knowledge | None = None) -> None:
        self.acceptance = AcceptanceModel(known.acceptance if known else None)
        self.lookup = PromptLookup(hits=known.hits, guesses=known.guesses) if known else PromptLookup()
        self._known = dict(known.by_rows) if known else {}
        self._made: dict[int, Controller] = {}
        self._trial: CostTrial | None = None

    def budget(self, rows: int) -> Budget:
        """The budget of rounds of ``rows`` texts: their controller, or the trial that is under way."""
        return self._trial or self.at(rows)

    @property
    def timed(self) -> bool:
        """Whether the costs of trees of a single row are known."""
        return self.at(1).costs.timed

    @contextmanager
    def trial(self) -> Iterator[None]:
        """A context in which rounds of one row measure costs (:class:`CostTrial`). A new controller starts from them.

        Prompt lookup learns nothing: how often a text of such a trial repeats itself says nothing about others.
        """
        self._trial = trial = CostTrial()
        before = list(self.lookup.hits), list(self.lookup.guesses)
        try:
            yield
        finally:
            self._trial = None
            self.lookup.hits, self.lookup.guesses = before
        if (costs := trial.costs) is not None:
            self._known[1] = replace(self.at(1).learnt, costs=costs, timed=True, factors=trial.factors(costs))
            del self._made[1]

    def at(self, rows: int) -> Controller:
        """The controller of rounds with so many rows. A new one knows what the draft brings in other batches."""
        size = 1 << (rows - 1).bit_length()
        if size not in self._made:
            learnt = self._known.get(size)
            if learnt is None and (others := self._learnt()):
                near = others[min(others, key=lambda other: abs(other.bit_length() - size.bit_length()))]
                learnt = replace(NOTHING, gains=near.gains, reach=near.reach, calibration=near.calibration)
            self._made[size] = Controller(learnt, rows=size, acceptance=self.acceptance)
        return self._made[size]

    @property
    def knowledge(self) -> Knowledge:
        """The current knowledge."""
        return Knowledge(
            by_rows=self._learnt(),
            acceptance=tuple(self.acceptance.weights),
            hits=tuple(self.lookup.hits),
            guesses=tuple(self.lookup.guesses),
        )

    def _learnt(self) -> dict[int, Learnt]:
        return self._known | {size: made.learnt for size, made in self._made.items() if made.costs.base}
