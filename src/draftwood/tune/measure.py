"""Times texts round by round, without the first round, which reads the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import log, sqrt
from statistics import fmean, median, stdev
from typing import Any, Final, NamedTuple, cast, final

from draftwood.api import Pair
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling

_INTERRUPTED: Final = 10  # medians: longer rounds were interrupted
_SPREAD: Final = 3  # texts that show a spread
_UNSEEN: Final = log(1.05)  # the mean logarithm that is needed without one
_ERRORS: Final = 2.0  # standard errors
ROOM: Final = 16  # spare tokens of a text, so that its end cuts no measured tree


class Timed(NamedTuple):
    """One round: its seconds and its new tokens."""

    seconds: float
    tokens: int


def ids_decoder(pair: Pair, method: Method, temperature: float) -> Decoder:
    """The pair's decoder of a method, for token ids without text.

    The drafter is that of the pair: its adaptive tree knows what loading has measured.
    """
    shared = pair.decoder(method, temperature=temperature).pipeline
    return Decoder(shared.target, shared.drafter, shared.verifier, eos=pair.eos)


def timed(pair: Pair, method: Method, temperature: float, prompt: Sequence[int], seed: int, tokens: int) -> list[Timed]:
    """The rounds of one text of about ``tokens`` new tokens, without the first.

    The text's end is found here: a decoder that knew it would cut trees.
    """
    decoder, limits = ids_decoder(pair, method, temperature), Limits(max_new_tokens=tokens + ROOM, ignore_eos=True)
    request = Request(prompt=prompt, seed=seed, limits=limits)
    rounds, count, before = list[Timed](), 0, 0.0
    with closing(cast(Any, decoder.stream([request], Sampling(temperature=temperature)))) as stream:
        for [piece] in stream:
            now = sum(decoder.stats[0].seconds.values())
            rounds.append(Timed(now - before, len(piece.tokens)))
            before, count = now, count + len(piece.tokens)
            if count >= tokens or not set(pair.eos).isdisjoint(piece.tokens):
                break
    return rounds[1:]


@final
@dataclass
class Speed:
    """The measured speed of a method, from the rounds of all its texts."""

    rounds: list[Timed] = field(default_factory=list)
    by_text: list[float] = field(default_factory=list)  # tokens per second; 0 where a text ended with its first round

    @property
    def texts(self) -> int:
        """Number of texts."""
        return len(self.by_text)

    def add(self, rounds: Sequence[Timed]) -> None:
        """Add the rounds of a text."""
        self.rounds += rounds
        self.by_text.append(sum(one.tokens for one in rounds) / sum(one.seconds for one in rounds) if rounds else 0.0)

    def beats(self, other: Speed) -> bool:
        """Whether this method is faster than another one by more than the spread of both on the same texts.

        The mean logarithm of the ratios, text by text, must exceed 0 by two standard errors. Less than three texts show no
        spread; then a twentieth is needed.
        """
        pairs = zip(self.by_text, other.by_text, strict=False)
        ratios = [log(ours / theirs) for ours, theirs in pairs if ours and theirs]
        if not ratios:
            return False
        error = stdev(ratios) / sqrt(len(ratios)) if len(ratios) >= _SPREAD else _UNSEEN / _ERRORS
        return fmean(ratios) > _ERRORS * error

    @property
    def tokens_per_round(self) -> float:
        """New tokens per target forward."""
        return fmean(one.tokens for one in self.rounds)

    @property
    def seconds_per_round(self) -> float:
        """The mean without interrupted rounds."""
        most = _INTERRUPTED * median(one.seconds for one in self.rounds)
        return fmean(one.seconds for one in self.rounds if one.seconds <= most)

    @property
    def tokens_per_second(self) -> float:
        """Infinite without measured rounds."""
        return self.tokens_per_round / self.seconds_per_round if self.rounds else float("inf")
