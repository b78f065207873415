"""The limits of a best-first tree: its full shape, or what a controller estimates to pay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Final, final

PLAIN_ROUND: Final = "a round without a tree, to time it"
RESTING: Final = "no draft has paid lately"
UNPROFITABLE: Final = "a draft does not pay"
"""Why a tree is the root alone, in :attr:`draftwood.core.tree.DraftTree.stop`."""


class Budget:
    """Decides how far a tree grows, from what levels and rounds have cost and brought.

    This one allows every level and every node, so the tree always has its full shape. Others replace what they decide.

    Tokens and probabilities are means over the rows of a batch. ``above`` is the probability that the text runs through the
    parents of a level, and not on to a guessed child.
    """

    def begin_round(self) -> bool:
        """Begin a round; True if it must have no tree."""
        return False

    def shows_guess(self, chains: Sequence[Sequence[float]]) -> bool:
        """Whether the target scores guessed chains, one per row, given their tokens' conditional probabilities."""
        return any(chains)

    def drafts(self, above: float) -> bool:
        """Whether the draft model's first forward of the round pays, at the roots."""
        return True

    def gain(self, depth: int) -> float:
        """Expected tokens of a level of this depth per unit of probability above it; the root has depth 0."""
        return 1.0

    def price(self, nodes: int) -> float:
        """The tokens that the seconds of a later level of ``nodes`` nodes per row would bring otherwise."""
        return 0.0

    @final
    def another_level(self, depth: int, above: float, nodes: int) -> bool:
        """Whether a draft forward pays at ``nodes`` nodes per row of this depth."""
        return self.gain(depth) * above >= self.price(nodes) if depth else self.drafts(above)

    @final
    def min_frontier_value(self, depth: int, width: int) -> float:
        """The least probability for which a further node of this depth, of ``width`` at most, is worth its share of the
        forward."""
        gain, share = self.gain(depth), (self.price(width) - self.price(1)) / max(1, width - 1)
        return share / gain if gain > 0.0 else 1.0

    def refuse_level(self, depth: int, above: float) -> None:
        """Record that a level after the first did not pay."""

    def end_level(self, depth: int, above: float, values: Sequence[float], nodes: int, seconds: float | None) -> None:
        """Record a level.

        Args:
            values: path probabilities of the best candidates so far, the largest first.
            seconds: of its forward; None where the forward also read text that the draft model had not seen.
        """

    def tree_size(self, values: Sequence[float]) -> int:
        """How many candidates the target scores, given their path probabilities, the largest first."""
        return len(values)

    def end_round(self, nodes: int, tokens: float, drafting: float, seconds: float) -> None:
        """Record a round.

        Args:
            nodes: nodes that the target scored, including the root.
            tokens: new tokens per row.
            drafting: seconds of the levels.
            seconds: of the whole round.
        """

    def rest(self, looking: float) -> int:
        """How many rounds may go by without a look whether a draft pays, after one without a tree. They go the way of plain
        decoding: only :meth:`end_round` is called for them.

        Args:
            looking: seconds that a look takes: the guess, its comparison with the text, the decisions and estimates. Some
                fifty microseconds are nothing next to the forward of a large model, and several per cent of a small one's.
        """
        return 0


@final
class EverySize(Budget):
    """Trees of small and large sizes in turn, whatever they cost and bring; one round of eight has none."""

    def __init__(self) -> None:
        self._sizes, self._size = cycle((24, 1, 4, 0, 2, 12, 7, 3)), 0

    def begin_round(self) -> bool:
        self._size = next(self._sizes)
        return not self._size

    def gain(self, depth: int) -> float:
        return 1.0 if depth < self._size else -math.inf

    def tree_size(self, values: Sequence[float]) -> int:
        return min(self._size, len(values))
