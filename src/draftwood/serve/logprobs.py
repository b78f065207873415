"""Log-probabilities in OpenAI's shapes."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any, final

from draftwood.core.token_logprobs import TokenLogprob
from draftwood.core.token_texts import LOWEST, TokenTexts


def of_chat(entries: Sequence[TokenLogprob], texts: TokenTexts) -> dict[str, Any]:
    """The log-probabilities of an answer, or of a part of one."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        text, data = texts.text_of(token), list(texts.bytes_of(token))
        return {"token": text, "logprob": max(logprob, LOWEST), "bytes": data}

    content = [{**one(e.token, e.logprob), "top_logprobs": [one(*each) for each in e.top]} for e in entries]
    return {"content": content, "refusal": None}


@final
class CompletionLogprobs:
    """The log-probabilities of a completion, part by part: offsets count on.

    A token that is no whole characters is named by its bytes, as in ``bytes:\\xf0\\x9f``.

    Args:
        texts: the texts of tokens.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # characters of the text so far

    def part(self, entries: Sequence[TokenLogprob], first: int | None = None) -> dict[str, Any]:
        """The log-probabilities of the next tokens; ``first`` is a token before them that has none."""
        tokens = [*([] if first is None else [first]), *(entry.token for entry in entries)]
        unknown = [] if first is None else [None]
        return {
            "tokens": [self._texts.escaped(token) for token in tokens],
            "token_logprobs": [*unknown, *(max(entry.logprob, LOWEST) for entry in entries)],
            "top_logprobs": [*unknown, *map(self._top, entries)],
            "text_offset": [self._begins(token) for token in tokens],
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        """The likeliest tokens and the token itself, by text. Of tokens with the same text the likeliest counts."""
        if not entry.top:
            return None
        found: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            found.setdefault(self._texts.escaped(token), max(logprob, LOWEST))
        return found

    def _begins(self, token: int) -> int:
        """Where a token begins in the text, in characters. Special tokens are not part of the text."""
        begin = self._offset
        if not self._texts.is_special(token):
            self._offset += len(self._decoder.decode(self._texts.bytes_of(token)))
        return begin
