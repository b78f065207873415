"""How probable it is that the target's choice falls on a candidate, learnt from what the rounds reveal.

A multinomial logit with four parameters over the best candidates of a node and "none of these". A candidate's score
falls with the gap of its perturbed log-probability to the best one and with the logarithm of its rank; the score of "none
of these" grows with the entropy of the draft's law. Exactness does not depend on it: any shared-noise tree is legal.
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

import numpy as np

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_START = (1.0, -0.4, -3.5, 0.6)  # weights of: minus the gap, log rank, none of these, entropy in "none of these"
_PRIOR = 30.0  # as many squared gradients as were already seen at the start; the more, the slower the first steps
_RATE = 0.5


@final
class Foresight:
    """The model and its running estimate (AdaGrad; Duchi et al. 2011).

    Args:
        fan: candidates per node.
    """

    def __init__(self, fan: int) -> None:
        self.weights: Numbers = np.array(_START)
        self._log_rank: Numbers = np.log(np.arange(1.0, fan + 1))
        self._squares: Numbers = np.full(len(_START), _PRIOR)

    def log_shares(self, scores: Numbers, entropy: Numbers) -> Numbers:
        """Log-probabilities ``[node, fan + 1]`` of each candidate and, last, of none of them.

        Args:
            scores: perturbed log-probabilities ``[node, fan]``, the best first; -inf where there is no candidate.
            entropy: of the draft's law ``[node]``, in nats.
        """
        gap, rank, none, spread = self.weights
        gaps = scores[:, :1] - scores
        gaps[~np.isfinite(scores)] = np.inf
        logits = np.empty((scores.shape[0], scores.shape[1] + 1))
        logits[:, :-1] = rank * self._log_rank[: scores.shape[1]] - gap * gaps
        logits[:, -1] = none + spread * entropy
        logits -= logits.max(axis=1, keepdims=True)
        shares: Numbers = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return shares

    def learn(self, scores: Numbers, entropy: Numbers, choice: Numbers) -> None:
        """One step for nodes at which the target's choice has come out: the index of a candidate, or ``fan`` for none."""
        shares = np.exp(self.log_shares(scores, entropy))
        error = -shares
        error[np.arange(len(choice)), choice.astype(np.int64)] += 1.0
        gaps = np.where(np.isfinite(scores), scores[:, :1] - scores, 0.0)
        candidates, none = error[:, :-1], error[:, -1]
        each = np.stack(
            [
                -(candidates * gaps).sum(axis=1),
                candidates @ self._log_rank[: scores.shape[1]],
                none,
                none * entropy,
            ],
            axis=1,
        )
        self._squares += (each**2).sum(axis=0)
        self.weights += _RATE * each.sum(axis=0) / np.sqrt(self._squares)
        self.weights[0] = max(self.weights[0], 0.05)  # a larger gap never makes a candidate more probable
