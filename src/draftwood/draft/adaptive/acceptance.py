"""The probability that the target chooses a given child of a node, learnt from the outcomes of rounds.

The model is a multinomial logit with four weights over the best children of a node and "none of these". A child's logit
falls with the gap between its perturbed log-probability and the best child's, and with the logarithm of its rank. The logit
of "none of these" grows with the draft model's uncertainty: minus the log-probability of its likeliest token. Any
shared-noise tree is exact, whatever this model says. A few dozen plain numbers are quicker here than array operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from draftwood.draft.adaptive import constants

_SMALLEST_GAP_WEIGHT = 0.05  # a larger gap never makes a child more probable


@final
class AcceptanceModel:
    """The model and its running estimate (AdaGrad; Duchi et al. 2011).

    Args:
        weights: known weights to start from.

    Attributes:
        weights: of the gap, the log rank, "none of these" and the uncertainty.
    """

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        self.weights = list(constants.ACCEPTANCE_START if weights is None else weights)
        self._rate = constants.ACCEPTANCE_RATE
        self._log_rank = [math.log(rank) for rank in range(1, constants.CHILDREN + 1)]
        self._squares = [constants.ACCEPTANCE_PRIOR] * len(self.weights)

    def log_probs(self, scores: Sequence[float], uncertainty: float) -> list[float]:
        """Log-probabilities of each child of a node and, last, of none of them.

        Args:
            scores: finite perturbed log-probabilities of at least one child, the best first.
            uncertainty: minus the log-probability of the draft model's likeliest token.
        """
        gap, rank, none, spread = self.weights
        logits = [rank * log_rank - gap * (scores[0] - s) for s, log_rank in zip(scores, self._log_rank, strict=False)]
        logits.append(none + spread * uncertainty)
        top = max(logits)
        total = top + math.log(math.fsum(math.exp(x - top) for x in logits))
        return [x - total for x in logits]

    def learn(self, scores: Sequence[float], uncertainty: float, choice: int) -> None:
        """One step for a node whose ``choice`` is known: the index of a child, or the number of children for none."""
        error = [-math.exp(log_prob) for log_prob in self.log_probs(scores, uncertainty)]
        error[choice] += 1.0
        children = list(zip(error, scores, self._log_rank, strict=False))
        gradient = (
            -math.fsum(e * (scores[0] - s) for e, s, _ in children),
            math.fsum(e * log_rank for e, _, log_rank in children),
            error[-1],
            error[-1] * uncertainty,
        )
        for i, slope in enumerate(gradient):
            self._squares[i] += slope * slope
            self.weights[i] += self._rate * slope / math.sqrt(self._squares[i])
        self.weights[0] = max(self.weights[0], _SMALLEST_GAP_WEIGHT)
