"""Where a text's ending stood before, and how far what followed it there may be trusted.

Source: Saxena 2023, "Prompt Lookup Decoding"; names as in ``transformers`` (``max_matching_ngram_size``). Endings are
indexed as the text grows, so that a lookup costs the same in a long text as in a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple, final

from draftwood.core.sampling import Sampler

MAX_NGRAM = 3
_FORGET = 0.95  # weight of the past, per token that was foretold
_FIRST = 0.25  # chance of a token behind one that agrees, at the start
_DOUBT = 6.0  # tokens as if foretold by what is known of matches shorter by one
_NEVER = 1e-6  # no chance is smaller, and none nearer to 1
_LONGEST = 16  # matches that are longer count as this long


@final
class Endings:
    """Index of one text that grows, and of what an encoder reads before it.

    Args:
        source: what the encoder reads.
        max_ngram: the longest ending that is looked up.
    """

    def __init__(self, source: Sequence[int] = (), max_ngram: int = MAX_NGRAM) -> None:
        self._tokens = list(source)
        self._border = len(self._tokens)
        self._max_ngram = max_ngram
        self._after: dict[tuple[int, ...], int] = {}  # of each run of tokens, the place behind its last occurrence
        self._indexed = 0  # places behind runs

    def follow(self, text: Sequence[int], count: int, vocab: int) -> tuple[list[int], int]:
        """Up to ``count`` tokens that followed the latest earlier match of the longest possible ending of ``text``, and how
        many tokens agree there (up to 16). An ending is the text's own and reaches not into the source.

        Args:
            text: what was given before, and perhaps more behind it.
            vocab: what follows ends before a token from here on: an encoder may read tokens that its decoder never writes.
        """
        tokens = self._tokens
        tokens.extend(text[len(tokens) - self._border :])
        n = len(tokens)
        for end in range(self._indexed + 1, n):
            for size in range(1, min(self._max_ngram, end) + 1):
                self._after[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, n - 1)
        for size in range(min(self._max_ngram, len(text), n - 1), 0, -1):
            if (at := self._after.get(tuple(tokens[n - size :]))) is not None:
                longest = min(_LONGEST, len(text), at)
                while size < longest and tokens[at - 1 - size] == tokens[n - 1 - size]:
                    size += 1
                return list(takewhile(lambda token: token < vocab, tokens[at : at + count])), size
        return [], 0


class Guess(NamedTuple):
    """What may come next: tokens, and the chance of each of them where those before it are right."""

    tokens: list[int]
    chances: list[float]


@final
class Lookup:
    """Guesses from the texts themselves, with chances that are learnt from every round, used or not.

    The chance that a match goes on depends on how many tokens agree so far; where little is known, it is that of a match
    shorter by one. Where the verifier only matches, any guess is exact.

    Args:
        length: tokens guessed at most.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._endings: list[Endings] = []
        self._found: list[tuple[list[int], int]] = []  # per row, what is foretold and how many tokens agree before it
        self._right, self._all = [0.0] * _LONGEST, [0.0] * _LONGEST  # by tokens that agree, less 1
        self._chances = self._chances_now()

    def clear(self) -> None:
        self._endings = []

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._endings += [Endings(source) for source in sources or [()] * len(texts)]

    def drop(self, rows: Sequence[int]) -> None:
        self._endings = [endings for row, endings in enumerate(self._endings) if row not in rows]

    def guess(self, sampler: Sampler, limits: Sequence[int]) -> list[Guess]:
        """One guess per row, cut at its limit, behind the end of its text and before what the settings forbid."""
        self._found, guesses = [], []
        rows = zip(self._endings, sampler.texts, sampler.stops, limits, strict=True)
        for row, (endings, text, stops, limit) in enumerate(rows):
            tokens, agreed = endings.follow(text, self.length, sampler.vocab)
            end = next((i for i, token in enumerate(tokens, 1) if token in stops), len(tokens))
            count = min(end, limit)
            if (most := sampler.permitted(row, tokens[:count])) < count:
                end = count = most
            self._found.append((tokens[:end], agreed))
            guesses.append(Guess(tokens[:count], [self._chances[_at(agreed + i)] for i in range(count)]))
        return guesses

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        """The tokens that came instead, per row."""
        for (found, agreed), came in zip(self._found, tokens, strict=True):
            for i, (guessed, token) in enumerate(zip(found, came, strict=False)):
                at = _at(agreed + i)
                self._right[at] = _FORGET * self._right[at] + (guessed == token)
                self._all[at] = _FORGET * self._all[at] + 1.0
                if guessed != token:
                    break
        if any(found for found, _ in self._found):
            self._chances = self._chances_now()

    def _chances_now(self) -> list[float]:
        """By tokens that agree, less 1: a few tokens seen must not pass for certainty, least of all the lucky ones among
        sixteen lengths."""
        chances, chance = [], _FIRST
        for right, of in zip(self._right, self._all, strict=True):
            chance = (right + _DOUBT * chance) / (of + _DOUBT)
            chances.append(min(max(chance, _NEVER), 1.0 - _NEVER))
        return chances


def _at(agreed: int) -> int:
    return min(agreed, _LONGEST) - 1
