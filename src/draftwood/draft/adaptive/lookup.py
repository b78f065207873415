"""Prompt lookup for adaptive trees: a guessed chain per row, with learnt probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, final

from draftwood.draft.adaptive import constants
from draftwood.draft.alignment import MAX_AGREED
from draftwood.draft.ngram_index import NgramIndex
from draftwood.sampling.sampler import Sampler

_SMALLEST = 1e-6  # no probability is closer to 0 or to 1


class Guess(NamedTuple):
    """A chain that may come next: its tokens, and the probability of each given those before it."""

    tokens: list[int]
    probabilities: list[float]


@final
class PromptLookup:
    """Guesses from the texts themselves, and from grammars that admit only one text.

    The probability that a match goes on depends on the number of tokens that agree so far. What all texts have shown is its
    prior, and their own prior is that for one token fewer. The present texts move it from there: chats seldom repeat
    themselves, and an edited file does. A verifier that only matches is exact for any guess.

    Args:
        length: the most tokens of a guess.
        hits, guesses: the attributes of another one, to start from.

    Attributes:
        hits, guesses: weights of right guesses and of all guesses in all texts, by the number of tokens that agree, less 1.
        probabilities: that the next token of a guess is right, by the same number.
    """

    def __init__(self, length: int = constants.NODES, *, hits: Sequence[float] = (), guesses: Sequence[float] = ()) -> None:
        self._length = length
        self._found: list[tuple[list[int], int]] = []  # per row, the guess and how many tokens agree before it
        self.hits, self.guesses = list(hits or [0.0] * MAX_AGREED), list(guesses or [0.0] * MAX_AGREED)
        self._begin_texts()

    def guess(self, sampler: Sampler, limits: Sequence[int]) -> list[Guess]:
        """One guess per row. It ends at the row's limit, after a token that ends the text, and before a forbidden token."""
        if not any(row.has_state(self) for row in sampler.rows):
            self._begin_texts()
        self._found, guesses = [], []
        for number, (row, limit) in enumerate(zip(sampler.rows, limits, strict=True)):
            index = row.state(self, partial(NgramIndex, row.source, row.draft_text))
            tokens, agreed = index.follow(row.tokens, self._length, sampler.vocab)
            if (forced := sampler.forced(number)[: self._length]) != tokens[: len(forced)]:
                tokens, agreed = forced, MAX_AGREED  # as likely as the longest match
            end = next((i for i, token in enumerate(tokens, 1) if token in row.stops), len(tokens))
            count = min(end, limit)
            if (most := sampler.permitted(number, tokens[:count])) < count:
                end = count = most
            self._found.append((tokens[:end], agreed))
            guesses.append(Guess(tokens[:count], [self.probabilities[_at(agreed + i)] for i in range(count)]))
        return guesses

    def _begin_texts(self) -> None:
        """Nothing is known of the present texts."""
        self._texts_hits, self._texts_guesses = [0.0] * MAX_AGREED, [0.0] * MAX_AGREED
        self.probabilities = self._estimates()

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        """Compare the last guesses, drafted or not, with the new tokens of each row. Equal rows are one observation."""
        rows = [(tuple(found), agreed, tuple(new)) for (found, agreed), new in zip(self._found, tokens, strict=True)]
        for found, agreed, new in dict.fromkeys(rows):
            for i, (guessed, token) in enumerate(zip(found, new, strict=False)):
                at = _at(agreed + i)
                for forget, hits, guesses in (
                    (constants.FORGET_CALIBRATION, self.hits, self.guesses),
                    (constants.LOOKUP_FORGET, self._texts_hits, self._texts_guesses),
                ):
                    hits[at] = forget * hits[at] + (guessed == token)
                    guesses[at] = forget * guesses[at] + 1.0
                if guessed != token:
                    break
        if any(found for found, _ in self._found):
            self.probabilities = self._estimates()

    def _estimates(self) -> list[float]:
        """By tokens that agree, less 1. Each estimate has a prior, so a few lucky tokens are not certainty."""
        out, known, prior = [], constants.LOOKUP_FIRST, constants.LOOKUP_PRIOR
        for hits, guesses, right, of in zip(self.hits, self.guesses, self._texts_hits, self._texts_guesses, strict=True):
            known = (hits + prior * known) / (guesses + prior)
            out.append(min(max((right + prior * known) / (of + prior), _SMALLEST), 1.0 - _SMALLEST))
        return out


def _at(agreed: int) -> int:
    return min(agreed, MAX_AGREED) - 1
