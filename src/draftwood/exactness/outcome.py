"""What every check says: whether the output is exact, and whether there were drafts that could have spoilt it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from draftwood.core.rounds import Stats
from draftwood.core.settings import Method
from draftwood.draft.adaptive.budget import EverySize
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.pipeline import PLAIN
from draftwood.engine.session import Session


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The base of the results of a check.

    Attributes:
        exact: no test fails, and drafted tokens were accepted if the method drafts any.
        drafted, accepted: number of drafted nodes that the target scored, and of those that were accepted.
        unproven: no test fails, but no drafted token was accepted, so nothing is shown.
    """

    exact: bool
    drafted: int = 0
    accepted: int = 0
    unproven: bool = False

    @property
    def verdict(self) -> str:
        """The first words of a summary."""
        if self.unproven:
            return "NO PROOF, since no drafted token was accepted: give more samples, or prompts that the draft knows"
        return "exact" if self.exact else "NOT exact"

    @property
    def drafts(self) -> str:
        """The numbers of drafted and accepted nodes in words."""
        return f"{self.accepted:,} of {self.drafted:,} drafted nodes were accepted"

    def after(self, decoder: Decoder, stats: Iterable[Stats]) -> Self:
        """The result of texts with these statistics."""
        total = Stats()
        for one in stats:
            total.add(one)
        accepted = sum(count * rounds for count, rounds in total.accepted.items())
        unproven = self.exact and not accepted and decoder.pipeline.drafter.name != PLAIN
        exact = self.exact and not unproven
        return replace(self, exact=exact, drafted=total.drafted, accepted=accepted, unproven=unproven)


def decoder_of(pair: Session, method: Method, temperature: float) -> Decoder:
    """A decoder whose adaptive trees have every size in turn: a check drafts whether or not that pays on the machine."""
    chosen, greedy = pair.method(method, temperature=temperature), temperature == 0
    drafter, verifier = build(chosen, pair.draft, greedy=greedy, controllers=Controllers(budget=EverySize()))
    return Decoder(pair.target, drafter, verifier, tokenizer=pair.tokenizer, eos=pair.eos)
