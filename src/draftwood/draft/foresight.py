"""How probable it is that the target's choice falls on a candidate, learnt from what the rounds reveal.

A multinomial logit with four parameters over the best candidates of a node and "none of these". A candidate's score
falls with the gap of its perturbed log-probability to the best one and with the logarithm of its rank; the score of "none
of these" grows with the doubt of the draft, which is minus the log-probability of its likeliest token. Exactness does not
depend on it: any shared-noise tree is legal. Plain numbers: a few dozen of them are quicker here than array operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

_START = (1.0, -0.4, -3.0, 0.9)  # weights of: minus the gap, log rank, none of these, doubt in "none of these"
_PRIOR = 30.0  # as many squared gradients as were already seen at the start; the more, the slower the first steps
_RATE = 0.3


@final
class Foresight:
    """The model and its running estimate (AdaGrad; Duchi et al. 2011).

    Args:
        fan: candidates per node.
    """

    def __init__(self, fan: int) -> None:
        self.weights = list(_START)
        self._log_rank = [math.log(rank) for rank in range(1, fan + 1)]
        self._squares = [_PRIOR] * len(_START)

    def log_shares(self, scores: Sequence[float], doubt: float) -> list[float]:
        """Log-probabilities of each candidate of a node and, last, of none of them.

        Args:
            scores: finite perturbed log-probabilities of at least one candidate, the best first.
            doubt: minus the log-probability of the draft's likeliest token.
        """
        gap, rank, none, spread = self.weights
        logits = [rank * log_rank - gap * (scores[0] - s) for s, log_rank in zip(scores, self._log_rank, strict=False)]
        logits.append(none + spread * doubt)
        top = max(logits)
        total = top + math.log(math.fsum(math.exp(x - top) for x in logits))
        return [x - total for x in logits]

    def learn(self, scores: Sequence[float], doubt: float, choice: int) -> None:
        """One step for a node at which the target's choice has come out: a candidate's index, or one more for none."""
        error = [-math.exp(share) for share in self.log_shares(scores, doubt)]
        error[choice] += 1.0
        candidates = list(zip(error, scores, self._log_rank, strict=False))
        gradient = (
            -math.fsum(e * (scores[0] - s) for e, s, _ in candidates),
            math.fsum(e * log_rank for e, _, log_rank in candidates),
            error[-1],
            error[-1] * doubt,
        )
        for i, slope in enumerate(gradient):
            self._squares[i] += slope * slope
            self.weights[i] += _RATE * slope / math.sqrt(self._squares[i])
        self.weights[0] = max(self.weights[0], 0.05)  # a larger gap never makes a candidate more probable
