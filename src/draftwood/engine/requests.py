"""Input and output of the decode loop: requests and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from draftwood.core.limits import FinishReason, Limits
from draftwood.core.rounds import Stats
from draftwood.core.token_logprobs import LogprobSettings, TokenLogprob
from draftwood.core.token_texts import TokenTexts
from draftwood.trace.records import Trace


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """One text to continue.

    Attributes:
        prompt: token ids, at least one.
        padding: token ids before the prompt that its criterion and logits processors read, and no model.
        source: token ids for an encoder; the prompt is then the start of the decoder's text.
        draft_text: token ids of a text that this one may repeat, such as a file that is edited. Drafts are taken from it.
        seed: the text is a function of the prompt, the settings and the seed.
        limits: when to stop.
        criterion: ends the text if it is True for all token ids so far.
        final: the last token of a text that ``limits`` or the context end (``forced_eos_token_id`` of ``transformers``).
        logprobs: the log-probabilities that pieces and the result report; None for none.
        nodes: the most nodes of its draft trees, the root not counted; trees of a fixed shape keep whole levels.
        cache_salt: the prefix cache serves a text with those of the same salt only.
        owner: drafts are taken from earlier texts of the same owner only; None for those of the same salt.
        shown: special tokens whose names are part of the text.
    """

    prompt: Sequence[int]
    padding: Sequence[int] = ()
    source: Sequence[int] = ()
    draft_text: Sequence[int] = ()
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    criterion: Callable[[list[int]], bool] | None = None
    final: int | None = None
    logprobs: LogprobSettings | None = None
    nodes: int | None = None
    cache_salt: str = ""
    owner: str | None = None
    shown: frozenset[int] = frozenset()


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
    trace: Trace | None = field(default=None, repr=False)
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
