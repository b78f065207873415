"""Where a text's ending stood before, and how far what followed it there may be trusted.

Source: Saxena 2023, "Prompt Lookup Decoding"; names as in ``transformers`` (``max_matching_ngram_size``). Endings are
indexed as the text grows, so that a lookup costs the same in a long text as in a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple, final

from draftwood.sampling import Law

MAX_NGRAM = 3
_FORGET = 0.95  # weight of the past, per token that was foretold
_DOUBT = 2.0  # tokens that were as if foretold at the start
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
    agreed: int


@final
class Lookup:
    """Guesses from the texts themselves, with chances that are learnt from every round, used or not.

    The chance that a match goes on depends on how many tokens agree so far. Where the verifier only matches, any guess is
    exact.

    Args:
        length: tokens guessed at most.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._endings: list[Endings] = []
        self._guesses: list[Guess] = []
        agreed = range(1, _LONGEST + 1)
        self._right = [_DOUBT * k / (k + 3) for k in agreed]  # the longer a match, the likelier it goes on
        self._all = [_DOUBT] * len(agreed)

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._endings = [Endings(source) for source in sources or [()] * len(texts)]

    def select(self, rows: Sequence[int]) -> None:
        self._endings = [self._endings[r] for r in rows]

    def guess(self, law: Law, limits: Sequence[int]) -> list[Guess]:
        """One guess per row, cut at its limit and behind the end of its text."""
        self._guesses = []
        for endings, text, stops in zip(self._endings, law.texts, law.stops, strict=True):
            tokens, agreed = endings.follow(text, self.length, law.vocab)
            end = next((i for i, token in enumerate(tokens, 1) if token in stops), len(tokens))
            self._guesses.append(Guess(tokens[:end], [self._chance(agreed + i) for i in range(end)], agreed))
        rows = zip(self._guesses, limits, strict=True)
        return [Guess(guess.tokens[:limit], guess.chances[:limit], guess.agreed) for guess, limit in rows]

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        """The tokens that came instead, per row."""
        for guess, came in zip(self._guesses, tokens, strict=True):
            for i, (guessed, token) in enumerate(zip(guess.tokens, came, strict=False)):
                at = min(guess.agreed + i, _LONGEST) - 1
                self._right[at] = _FORGET * self._right[at] + (guessed == token)
                self._all[at] = _FORGET * self._all[at] + 1.0
                if guessed != token:
                    break

    def _chance(self, agreed: int) -> float:
        at = min(agreed, _LONGEST) - 1
        return min(max(self._right[at] / self._all[at], _NEVER), 1.0 - _NEVER)
