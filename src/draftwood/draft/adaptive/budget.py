"""What bounds a best-first tree: always the same budget, or a controller that knows what pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final, runtime_checkable


@runtime_checkable
class Budget(Protocol):
    """Asked while a tree grows, and told what the growth took and brought.

    Tokens and probabilities are means over the rows of a batch; ``above`` is the probability that the text runs through the
    nodes that a level would grow below, and not on to a guessed child.

    Attributes:
        learns: :meth:`end_level` and :meth:`end_round` change something, so that what they are told must be worked out.
    """

    @property
    def learns(self) -> bool: ...

    def begin_round(self) -> bool:
        """A round begins; whether it must do without any tree."""
        ...

    def shows_guess(self, chains: Sequence[Sequence[float]]) -> bool:
        """Whether guessed chains, one per row, are shown to the target; given their tokens' conditional probabilities."""
        ...

    def another_level(self, depth: int, above: float, nodes: int) -> bool:
        """Whether a forward of the draft model below nodes of this depth pays; ``nodes`` per row, 0 for the root's."""
        ...

    def min_frontier_value(self, depth: int) -> float:
        """The probability below which a second node of this depth is not worth its share of the forward."""
        ...

    def min_node_value(self) -> float:
        """The probability below which a node costs the target more than it brings."""
        ...

    def end_level(self, depth: int, above: float, gain: float, nodes: int, seconds: float | None) -> None:
        """A level was drafted: tokens that its new candidates are expected to bring beyond their cost to the target, and the
        seconds of its forward; None where that forward also read text that the draft model had not seen."""
        ...

    def tree_size(self, values: Sequence[float]) -> int:
        """How many candidates are shown to the target, given their path probabilities, the largest first."""
        ...

    def end_round(self, nodes: int, expected: float, tokens: float, drafting: float, seconds: float) -> None:
        """A round is over.

        Args:
            nodes: shown to the target, the root included.
            expected: sum of their path probabilities, the root not counted.
            tokens: new ones, per row.
            drafting: seconds of the levels.
            seconds: of the whole round.
        """
        ...


@final
class FixedBudget:
    """Every level of every round, and every node: the tree has the shape it was asked for."""

    learns = False

    def begin_round(self) -> bool:
        return False

    def shows_guess(self, chains: Sequence[Sequence[float]]) -> bool:
        return any(chains)

    def another_level(self, depth: int, above: float, nodes: int) -> bool:
        return True

    def min_frontier_value(self, depth: int) -> float:
        return 0.0

    def min_node_value(self) -> float:
        return 0.0

    def end_level(self, depth: int, above: float, gain: float, nodes: int, seconds: float | None) -> None:
        """Nothing to learn."""

    def tree_size(self, values: Sequence[float]) -> int:
        return len(values)

    def end_round(self, nodes: int, expected: float, tokens: float, drafting: float, seconds: float) -> None:
        """Nothing to learn."""
