"""Candidates for the nodes of a best-first tree, as plain lists on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, final


class Children(NamedTuple):
    """The possible children of a candidate.

    Attributes:
        tokens: in draw order.
        log_probs: logs of the children's conditional probabilities, given that the text reached the parent.
        scores: perturbed log-probabilities of the draft model, where conditional probabilities are learnt from them.
        uncertainty: minus the log-probability of the draft model's likeliest token, for the same purpose.
    """

    tokens: list[int]
    log_probs: list[float]
    scores: Sequence[float] = ()
    uncertainty: float = 0.0


_NO_GUESS: Final = (0, 0.0)


@final
class CandidateTree:
    """One row's candidates in order of creation; candidate 0 is the root, and parents come before children.

    Attributes:
        tokens, parents, depths: as in a tree.
        log_probs: log of each candidate's path probability, that is, that the text runs through it.
        numbers: candidate -> its node number in the draft runner, if the draft model has scored it.
        children: expanded candidate -> its children.
        guessed: candidate with a guessed child -> that child and its conditional probability.
    """

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.depths, self.log_probs = [root], [0], [0], [0.0]
        self.numbers: dict[int, int] = {}
        self.children: dict[int, Children] = {}
        self.guessed: dict[int, tuple[int, float]] = {}

    def add_chain(self, tokens: Sequence[int], probabilities: Sequence[float]) -> None:
        """Add a guessed chain below the root, with its tokens' conditional probabilities; before any other candidate."""
        for parent, (token, probability) in enumerate(zip(tokens, probabilities, strict=True)):
            path = self.log_probs[parent] + math.log(probability)
            self.guessed[parent] = self._new(parent, token, path), probability

    def add_children(self, parent: int, children: Children, least: float = -math.inf) -> None:
        """Add the children of a candidate whose log path probability is ``least`` or more. A guessed child keeps its own
        conditional probability. The rest is divided among all children, including the guessed one."""
        self.children[parent] = children
        guess, probability = self._guess(parent)
        above = self.log_probs[parent] + math.log1p(-probability)
        for token, log_prob in zip(children.tokens, children.log_probs, strict=True):
            if guess and token == self.tokens[guess]:
                self._raise(guess, math.log(probability + (1.0 - probability) * math.exp(log_prob)))
            elif (path := above + log_prob) >= least:
                self._new(parent, token, path)

    def _guess(self, parent: int) -> tuple[int, float]:
        """A candidate's guessed child and its conditional probability; (0, 0) where there is none."""
        return self.guessed.get(parent, _NO_GUESS)

    def _new(self, parent: int, token: int, path: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.log_probs.append(path)
        return len(self.tokens) - 1

    def _raise(self, guess: int, log_prob: float) -> None:
        """Change the conditional probability of a guessed candidate; guesses below it keep theirs."""
        while guess:
            self.log_probs[guess] = self.log_probs[self.parents[guess]] + log_prob
            guess, probability = self._guess(guess)
            log_prob = math.log(probability) if guess else 0.0

    def frontier(self, depth: int, width: int, cut: float, min_value: float, stops: frozenset[int]) -> list[int]:
        """The ``width`` candidates of this depth with the largest :meth:`off_guess`.

        Their log path probability is ``cut`` or more, and the draft model has scored their parents. All but the best have a
        value of ``min_value`` or more. No candidate ends the text.
        """
        numbers, parents, log_probs, guessed = self.numbers, self.parents, self.log_probs, self.guessed
        level = [i for i, at in enumerate(self.depths) if at == depth and log_probs[i] >= cut and parents[i] in numbers]
        values = [math.exp(log_probs[i]) * (1.0 - guessed[i][1] if i in guessed else 1.0) for i in level]
        best = sorted(zip(values, level, strict=True), key=_falling)[:width]
        return [i for value, i in best if (value >= min_value or i == best[0][1]) and self.tokens[i] not in stops]

    def off_guess(self, candidate: int) -> float:
        """Probability that the text runs through the candidate and not on to its guessed child."""
        return math.exp(self.log_probs[candidate]) * (1.0 - self._guess(candidate)[1])

    def ranked(self, nodes: int) -> list[int]:
        """The root and the ``nodes`` candidates with the largest path probability, the largest first.

        A parent comes before its children: a child's path probability is never larger, and the order is stable.
        """
        return sorted(range(len(self.log_probs)), key=[-log_prob for log_prob in self.log_probs].__getitem__)[: nodes + 1]


def _falling(candidate: tuple[float, int]) -> tuple[float, int]:
    """The order of candidates: by falling value, of equal ones the first."""
    return -candidate[0], candidate[1]
