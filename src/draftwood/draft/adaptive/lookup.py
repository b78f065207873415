"""Prompt lookup for adaptive trees: a guessed chain per row, with learnt probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple, final

from draftwood.draft.adaptive import constants
from draftwood.draft.alignment import MAX_AGREED
from draftwood.draft.ngram_index import Match, NgramIndex
from draftwood.sampling.sampler import Sampler

KINDS: Final = 2 * MAX_AGREED
"""Kinds of matches: by the number of tokens that agree, less 1, those in the text itself, then those in earlier texts."""
_SMALLEST: Final = 1e-6  # no probability is closer to 0 or to 1


class Guess(NamedTuple):
    """A chain that may come next: its tokens, and the probability of each given those before it."""

    tokens: list[int]
    probabilities: list[float]


@final
class PromptLookup:
    """Guesses from the texts themselves, from earlier texts, and from grammars that admit only one text.

    The probability that a match goes on depends on its kind: on the number of tokens that agree so far, and on whose text it
    is. What all texts have shown is its prior, and their own prior is that for one token fewer. The present texts move it
    from there: chats seldom repeat themselves, and an edited file does. A verifier that only matches is exact for any guess.

    Args:
        length: the most tokens of a guess.
        hits, guesses: the attributes of another one, to start from.

    Attributes:
        hits, guesses: weights of right guesses and of all guesses in all texts, by kind.
        probabilities: that the next token of a guess is right, by kind.
    """

    def __init__(self, length: int = constants.NODES, *, hits: Sequence[float] = (), guesses: Sequence[float] = ()) -> None:
        self._length = length
        self._found: list[list[Match]] = []  # per row
        self.hits, self.guesses = list(hits or [0.0] * KINDS), list(guesses or [0.0] * KINDS)
        self._begin_texts()

    def guess(self, sampler: Sampler, limits: Sequence[int]) -> list[Guess]:
        """The likeliest guess per row. It ends at the row's limit, after a token that ends the text, and before one that a
        grammar or a bias forbids."""
        if not any(row.has_state(self) for row in sampler.rows):
            self._begin_texts()
        self._found, guesses = [], []
        for number, limit in enumerate(limits):
            matches = self._matches(sampler, number)
            match = max(matches, key=lambda one: self.probabilities[_kind(one, 0)] if one.tokens else 0.0)
            tokens = match.tokens[:limit]
            if (most := sampler.permitted(number, tokens)) < len(tokens):
                tokens = tokens[:most]
                matches = [one if one is not match else match._replace(tokens=tokens) for one in matches]
            self._found.append(matches)
            guesses.append(Guess(tokens, [self.probabilities[_kind(match, i)] for i in range(len(tokens))]))
        return guesses

    def _matches(self, sampler: Sampler, number: int) -> list[Match]:
        """A row's matches up to the end of a text; what a grammar forces is as likely as the longest match."""
        row = sampler.rows[number]
        matches = row.state(self, partial(NgramIndex.of, row)).matches(row.tokens, self._length)
        forced, found = sampler.forced(number)[: self._length], []
        for match in matches:
            tokens = list(takewhile(lambda token: token < sampler.vocab, match.tokens))
            end = next((i for i, token in enumerate(tokens, 1) if token in row.stops), len(tokens))
            if tokens[: len(forced)] == forced:
                found.append(match._replace(tokens=tokens[:end]))
        return found or [Match(forced, MAX_AGREED)]

    def _begin_texts(self) -> None:
        """Nothing is known of the present texts."""
        self._texts_hits, self._texts_guesses = [0.0] * KINDS, [0.0] * KINDS
        self.probabilities = self._estimates()

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        """Compare the last matches, drafted or not, with the new tokens of each row. Equal rows are one observation."""
        unequal = {
            (tuple(match.tokens), match.agreed, match.earlier, tuple(new)): (match, new)
            for matches, new in zip(self._found, tokens, strict=True)
            for match in matches
        }
        for match, new in unequal.values():
            for i, (guessed, token) in enumerate(zip(match.tokens, new, strict=False)):
                at = _kind(match, i)
                for forget, hits, guesses in (
                    (constants.FORGET_SLOWLY, self.hits, self.guesses),
                    (constants.LOOKUP_FORGET, self._texts_hits, self._texts_guesses),
                ):
                    hits[at] = forget * hits[at] + (guessed == token)
                    guesses[at] = forget * guesses[at] + 1.0
                if guessed != token:
                    break
        if any(match.tokens for matches in self._found for match in matches):
            self.probabilities = self._estimates()

    def _estimates(self) -> list[float]:
        """By kind. Each estimate has a prior, so a few lucky tokens are not certainty."""
        out: list[float] = []
        known, prior = constants.LOOKUP_FIRST, constants.LOOKUP_PRIOR
        for hits, guesses, right, of in zip(self.hits, self.guesses, self._texts_hits, self._texts_guesses, strict=True):
            if len(out) == MAX_AGREED:
                known = constants.LOOKUP_FIRST
            known = (hits + prior * known) / (guesses + prior)
            out.append(min(max((right + prior * known) / (of + prior), _SMALLEST), 1.0 - _SMALLEST))
        return out


def _kind(match: Match, token: int) -> int:
    """The kind of a match where so many of its tokens were right."""
    return min(match.agreed + token, MAX_AGREED) - 1 + MAX_AGREED * match.earlier
