"""The limits of a best-first tree: its full shape, or what a controller estimates to pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PLAIN_ROUND: Final = "a round without a tree, to time it"
"""Why a tree is the root alone, in :attr:`draftwood.core.tree.DraftTree.stop`."""


class Budget:
    """Decides how far a tree grows, from what levels and rounds have cost and brought.

    This one allows every level and every node, so the tree always has its full shape. Others replace what they decide.

    Tokens and probabilities are means over the rows of a batch. ``above`` is the probability that the text runs through the
    parents of a level, and not on to a guessed child.

    Attributes:
        learns: :meth:`end_level` and :meth:`end_round` have an effect, so their arguments must be computed.
    """

    learns = False

    def begin_text(self) -> None:
        """Begin a text, or a batch of texts."""

    def begin_round(self) -> bool:
        """Begin a round; True if it must have no tree."""
        return False

    def shows_guess(self, chains: Sequence[Sequence[float]]) -> bool:
        """Whether the target scores guessed chains, one per row, given their tokens' conditional probabilities."""
        return any(chains)

    def another_level(self, depth: int, above: float, nodes: int) -> bool:
        """Whether a draft forward pays at ``nodes`` nodes per row of this depth; the root has depth 0."""
        return True

    def min_frontier_value(self, depth: int) -> float:
        """The least probability for which a further node of this depth is worth its share of the forward."""
        return 0.0

    def min_node_value(self) -> float:
        """The least probability for which a node is worth its cost to the target."""
        return 0.0

    def end_level(self, depth: int, above: float, gain: float, nodes: int, seconds: float | None) -> None:
        """Record a level.

        Args:
            gain: expected tokens of its new candidates, less their cost to the target.
            seconds: of its forward; None where the forward also read text that the draft model had not seen.
        """

    def tree_size(self, values: Sequence[float]) -> int:
        """How many candidates the target scores, given their path probabilities, the largest first."""
        return len(values)

    def end_round(self, nodes: int, expected: float, tokens: float, drafting: float, seconds: float) -> None:
        """Record a round.

        Args:
            nodes: nodes that the target scored, including the root.
            expected: sum of their path probabilities, without the root.
            tokens: new tokens per row.
            drafting: seconds of the levels.
            seconds: of the whole round.
        """

    def rest(self, looking: float) -> int:
        """How many rounds may go by without a look whether a draft pays, after one without a tree.

        Args:
            looking: seconds that a look takes.
        """
        return 0

    def end_rest(self, rounds: int, tokens: float, seconds: float) -> None:
        """Record such rounds, with their new tokens per row and their seconds."""
