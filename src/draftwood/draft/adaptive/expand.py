"""Children of candidates, and their conditional probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias, final

import torch

from draftwood.core.draws import Draw
from draftwood.core.log_probs import Pending
from draftwood.core.rng import RoundRng, drawing_space
from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.candidates import Children
from draftwood.sampling.best import best_tokens

_SMALLEST: Final = 1e-30
_SMALLEST_GAP_WEIGHT: Final = 0.05  # a larger gap never makes a child more probable
# Acceptance of a child divided by that of the rejected sibling before it; found on the bundled pair, and any value is exact.
_AFTER_REJECTION: Final = 0.5


@final
class AcceptanceModel:
    """The probability that the target chooses a given child of a node, learnt from the outcomes of rounds.

    A multinomial logit with four weights over the best children of a node and "none of these". A child's logit falls with
    the gap between its perturbed log-probability and the best child's, and with the logarithm of its rank. The logit of
    "none of these" grows with the draft model's uncertainty. The estimate runs by AdaGrad (Duchi et al. 2011). Any
    shared-noise tree is exact, whatever this model says. A few dozen plain numbers are quicker here than array operations.

    Args:
        weights: known weights to start from.

    Attributes:
        weights: of the gap, the log rank, "none of these" and the uncertainty.
    """

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        self.weights = list(constants.ACCEPTANCE_START if weights is None else weights)
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

    def learn(
        self, scores: Sequence[float], uncertainty: float, choice: int, log_probs: Sequence[float] | None = None
    ) -> None:
        """One step for a node whose ``choice`` is known: the index of a child, or the number of children for none.

        ``log_probs`` are those of the children, where they are known.
        """
        if log_probs is None:
            *log_probs, _ = self.log_probs(scores, uncertainty)
        error = [-math.exp(log_prob) for log_prob in log_probs]
        error.append(-max(0.0, 1.0 + math.fsum(error)))  # none of them
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
            self.weights[i] += constants.ACCEPTANCE_RATE * slope / math.sqrt(self._squares[i])
        self.weights[0] = max(self.weights[0], _SMALLEST_GAP_WEIGHT)


@final
class GumbelExpander:
    """The children with the best perturbed scores; :class:`AcceptanceModel` gives their probabilities.

    Args:
        count: the most children of a node.
        model: learns from every round.
        name: the method's name on the command line.
        draw: point masses at temperature 0. There the noise is zero, the children are the draft model's best, and every
            verifier is exact.
    """

    def __init__(
        self, count: int, model: AcceptanceModel | None = None, *, name: str = "shared-noise", draw: Draw = Draw.SHARED_NOISE
    ) -> None:
        self.count = count
        self.name = name
        self.draw = draw
        self.model = AcceptanceModel() if model is None else model

    def expand(self, pending: Pending, rng: RoundRng, depth: int, first: int, sizes: Sequence[int]) -> list[list[Children]]:
        """The children of ``n`` nodes of each row at this depth."""
        best = best_tokens(pending, rng, depth, self.count, weights=self.model.weights)
        tokens, scores, likeliest = best.tokens.tolist(), best.scores.tolist(), best.likeliest.tolist()
        if best.chances is not None:
            chances: list[list[list[float]]] = best.chances.tolist()
        else:
            lines = zip(tokens, scores, likeliest, strict=True)
            chances = [[self._chances(*node) for node in zip(*row, strict=True)] for row in lines]
        rows = zip(tokens, chances, scores, likeliest, strict=True)
        return [[children_of(*node) for node in zip(*row, strict=True)] for row in rows]

    def _chances(self, tokens: list[int], scores: list[float], likeliest: float) -> list[float]:
        possible = len(tokens) - tokens.count(-1)
        return self.model.log_probs(scores[:possible], -likeliest)[:-1] if possible else []

    def learn(self, children: Children, choice: int) -> None:
        """Learn that the target chose this token below the parent of these children."""
        if children.tokens:
            at = children.tokens.index(choice) if choice in children.tokens else len(children.tokens)
            self.model.learn(children.scores, children.uncertainty, at, children.log_probs)


def children_of(tokens: list[int], log_probs: list[float], scores: list[float], likeliest: float) -> Children:
    """The children of a node; -1 is none."""
    if tokens[-1] < 0:
        count = len(tokens) - tokens.count(-1)
        tokens, log_probs, scores = tokens[:count], log_probs[:count], scores[:count]
    return Children(tokens, log_probs, scores, -likeliest)


@final
class SampledExpander:
    """Children drawn without replacement.

    Their conditional probabilities depend on the draft's distribution at the node and on the number of earlier siblings,
    never on a drawn token. So a tree may be cut by them (:mod:`draftwood.draft.adaptive.drafter`).

    Args:
        count: the most children of a node.
    """

    name = "dynamic"
    draw = Draw.WITHOUT_REPLACEMENT

    def __init__(self, count: int) -> None:
        self.count = count

    def expand(self, pending: Pending, rng: RoundRng, depth: int, first: int, sizes: Sequence[int]) -> list[list[Children]]:
        """The children of ``n`` nodes of each row, of which those from ``sizes`` on are padding.

        ``first`` is the first node's noise slot.
        """
        logp, rng, tokens_of = drawing_space(pending, rng)
        if min(sizes) < logp.shape[1]:
            padding = [[i >= size for i in range(logp.shape[1])] for size in sizes]
            logp = logp.masked_fill(torch.tensor(padding, device=logp.device).unsqueeze(-1), -torch.inf)
        drawn = tokens_of(rng.ordered(logp, self.count, first)).tolist()  # host sync
        best = logp.amax(dim=-1).exp().tolist()
        return [
            [_sampled([token for token in tokens if token >= 0], likeliest) for tokens, likeliest in zip(*row, strict=True)]
            for row in zip(drawn, best, strict=True)
        ]

    def learn(self, children: Children, choice: int) -> None:
        """Nothing to learn: the same seed must give the same tree in every round."""


def _sampled(tokens: list[int], likeliest: float) -> Children:
    """Children drawn from a distribution with this largest probability. It estimates that of the first one's acceptance."""
    log_probs, left, accept = [], 1.0, (1.0 + likeliest * likeliest) / 2
    for _ in tokens:
        log_probs.append(math.log(max(left * accept, _SMALLEST)))
        left *= 1.0 - accept
        accept *= _AFTER_REJECTION
    return Children(tokens, log_probs)


Expander: TypeAlias = GumbelExpander | SampledExpander
"""Gives candidates their children, at most ``count`` each, and learns which of them the target chose."""
