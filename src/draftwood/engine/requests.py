"""Input and output of the decode loop: requests, pieces of text, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from draftwood.core.limits import Limits
from draftwood.core.rounds import Round, Stats
from draftwood.core.token_logprobs import LogprobSettings, TokenLogprob
from draftwood.core.token_texts import TokenTexts
from draftwood.engine.output import FinishReason
from draftwood.trace.records import Trace


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """One text to continue.

    Attributes:
        prompt: token ids, at least one.
        source: token ids for an encoder; the prompt is then the start of the decoder's text.
        seed: the text is a function of the prompt, the settings and the seed.
        limits: when to stop.
        criterion: ends the text if it is True for all token ids so far.
        final: the last token of a text that ``limits`` or the context end (``forced_eos_token_id`` of ``transformers``).
        logprobs: the log-probabilities that pieces and the result report; None for none.
        nodes: the most nodes of its draft trees, the root not counted; trees of a fixed shape keep whole levels.
        cache_salt: the prefix cache serves a text with those of the same salt only.
        shown: special tokens whose names are part of the text.
    """

    prompt: Sequence[int]
    source: Sequence[int] = ()
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    criterion: Callable[[list[int]], bool] | None = None
    final: int | None = None
    logprobs: LogprobSettings | None = None
    nodes: int | None = None
    cache_salt: str = ""
    shown: frozenset[int] = frozenset()


@final
@dataclass(frozen=True, kw_only=True)
class Piece:
    """The output of one round for one row.

    Attributes:
        row: index of the request.
        tokens: new token ids.
        drafted: how many of them, from the first on, were drafted.
        text: text that is now certain; it may lag behind the tokens.
        finish_reason: set in the row's last piece.
        stop_text: set there where one of the limits' stop texts ended the text.
        round, round_row: the round, and the row's index in it.
        held: the text by which ``text`` lags behind; it is the end of a text whose row is dropped now.
        logprobs: one entry for each new token, if the request wants them.
    """

    row: int
    tokens: list[int]
    drafted: int
    text: str
    finish_reason: FinishReason | None
    round: Round
    round_row: int
    held: str
    stop_text: str | None = None
    logprobs: list[TokenLogprob] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished text.

    ``trace`` holds its rounds if they were recorded, ``logprobs`` an entry for each token if the request wants them.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    seed: int
    lossless: bool
    stats: Stats
    trace: Trace | None = None
    logprobs: list[TokenLogprob] | None = None

    def to_json(self, texts: TokenTexts | None = None) -> dict[str, Any]:
        """Plain values for JSON, without the trace (:mod:`draftwood.trace.files`).

        ``texts`` are those of the tokens in ``logprobs``; without them there are token ids only.
        """
        names = ("text", "token_ids", "finish_reason", "seed", "lossless")
        found = {**{n: getattr(self, n) for n in names}, "stats": self.stats.to_json()}
        if self.logprobs is not None:
            found["logprobs"] = (texts or TokenTexts(None)).to_json(self.logprobs)
        return found
