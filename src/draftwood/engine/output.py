"""A row of a batch and its output: limits, stop rules and trimming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from draftwood.core.detokenizer import Detokenizer
from draftwood.core.errors import ConfigError
from draftwood.core.limits import FinishReason, Limits
from draftwood.core.rounds import Stats
from draftwood.engine.requests import Request
from draftwood.sampling.rows import Row


def ends_of(limits: Limits, eos: frozenset[int]) -> frozenset[int]:
    """The tokens that end a text with these limits; ``eos`` are the end-of-text tokens."""
    return frozenset(limits.stop_token_ids) | (frozenset() if limits.ignore_eos else eos)


@final
class Entry:
    """A row of a batch, and what the loop keeps of it: tokens join its text, become characters, and end it.

    Args:
        row: the text.
        request: says when it ends.
        drafts: whether anything is drafted for it.
        longest: most tokens of prompt and text together, None if unlimited.
        tokenizer: for text and stop strings; None for token ids only.

    Attributes:
        row, request, drafts: as given.
        stats: updated after every round.
        finish_reason: why the text ended; None before that.
        stop_text: the stop string that ended it.

    Raises:
        ConfigError: stop strings without a tokenizer.
    """

    def __init__(
        self, row: Row, request: Request, *, drafts: bool = True, longest: int | None = None, tokenizer: Any = None
    ) -> None:
        limits = request.limits
        if limits.stop and tokenizer is None:
            raise ConfigError("stop strings need a tokenizer: pass one to the decoder, or use stop_token_ids")
        self.row, self.request, self.drafts, self.stats = row, request, drafts, Stats()
        self.finish_reason: FinishReason | None = None
        self.stop_text: str | None = None
        self._room = limits.max_new_tokens
        if longest is not None:
            self._room = min(self._room, longest - row.prompt_length)
        self._words = Detokenizer(tokenizer, row.tokens, request.shown) if tokenizer is not None else None
        self._held = ""  # text that may be the beginning of a stop string

    @property
    def context(self) -> list[int]:
        """The text without its root; before the first round, the prompt's."""
        return self.row.tokens[:-1]

    @property
    def remaining(self) -> int:
        """The most tokens that may still be added."""
        return self._room - (len(self.row.tokens) - self.row.prompt_length)

    @property
    def held(self) -> str:
        """Text of the tokens that :meth:`take` has not returned: it may begin a stop string, or be a part of a character."""
        return "" if self._words is None or self.finish_reason is not None else self._held + self._words.held

    def take(self, tokens: Sequence[int]) -> tuple[int, str]:
        """Add one round's tokens; returns how many of them are kept, and the text that is now certain."""
        new_text, count, request = "", 0, self.request
        for chosen in tokens:
            token = chosen if request.final is None or self.remaining > 1 else request.final
            count += 1
            self.row.tokens.append(token)
            if request.limits.stop:  # only stop strings need the text after every token
                new_text += self._read([token])
            if self.finish_reason is None and token == chosen:
                ends = token in self.row.stops or (request.criterion is not None and request.criterion(self.row.padded))
                self.finish_reason = "stop" if ends else None
            if self.finish_reason is None and self.remaining <= 0:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                break
        if not request.limits.stop:
            new_text += self._read(self.row.tokens[len(self.row.tokens) - count :])
        if self.finish_reason is not None:
            new_text += self._flush()
        return count, new_text

    def _read(self, tokens: Sequence[int]) -> str:
        if self._words is None:
            return ""
        self._held += self._words.push(tokens)
        return self._release()

    def _release(self) -> str:
        """Return text that cannot belong to a stop string; end the text where one is complete."""
        stops = self.request.limits.stop
        found = [(at, stop) for stop in stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.stop_text = min(found)
            out, self._held, self.finish_reason = self._held[:at], "", "stop"
            return out
        keep = max((_overlap(self._held, stop) for stop in stops), default=0)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out

    def _flush(self) -> str:
        """The rest of a finished text; nothing follows a stop string."""
        if self._words is None or self.stop_text is not None:
            return ""
        self._held += self._words.push([], last=True)
        out = self._release()
        if self.stop_text is None:
            out, self._held = out + self._held, ""
        return out


def _overlap(text: str, stop: str) -> int:
    """Length of the longest ending of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
