"""What writes texts together: a target, a drafter and a verifier; and a row of a batch, its limits and its stop rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from draftwood.core.checks import integer
from draftwood.core.detokenizer import Detokenizer, overlap
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.history import History
from draftwood.core.limits import FinishReason, Limits
from draftwood.core.rounds import Stats
from draftwood.core.settings import MAX_SEED
from draftwood.core.verifiers import check_pairing, check_temperature
from draftwood.draft import Drafter
from draftwood.draft.none import NoDraft
from draftwood.engine.requests import Request
from draftwood.grammar.constraint import Grammars
from draftwood.runners.protocols import Runner
from draftwood.sampling.processors import try_processors
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from draftwood.sampling.warping import check_bias
from draftwood.verify import Verifier


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
        keep = max((overlap(self._held, stop) for stop in stops), default=0)
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


PLAIN: Final = NoDraft.name  # the method of a row for which nothing is drafted


@final
@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What writes texts together.

    Attributes:
        target, drafter, verifier: the three of every round.
        tokenizer: for text and stop strings; None for token ids only.
        eos: end-of-text token ids.
        grammars: compiled for the target's tokens.

    Raises:
        PairingError: the verifier is not exact for the drafter's way of choosing siblings.
    """

    target: Runner
    drafter: Drafter
    verifier: Verifier
    tokenizer: Any
    eos: frozenset[int]
    grammars: Grammars

    def __post_init__(self) -> None:
        check_pairing(self.verifier.name, self.verifier.draws, self.drafter.name, self.drafter.draw)

    def check(self, sampling: Sampling) -> None:
        """Raise a ConfigError if the verifier is for temperature 0 and the sampling is not."""
        if self.verifier.greedy_only:
            check_temperature(self.verifier.name, sampling.temperature)

    def open(
        self, number: int, request: Request, sampling: Sampling, method: str | None, history: History | None = None
    ) -> Entry:
        """The entry of a request.

        A verifier that reads probabilities takes no drafts from earlier texts: a text would depend on them, and a seed that
        comes again on its own draws.

        Raises:
            ConfigError: an empty prompt, unknown tokens, a source that is missing or has no encoder, a seed out of range, a
                verifier for another temperature, another method, a logits processor that depends on other rows, a grammar
                that these models cannot follow, or log-probabilities of a sampled distribution that the verifier does not
                follow.
            CacheError: a prompt that fills the models' context.
        """
        self.check(sampling)
        check_bias(sampling, self.target.vocab_size)
        own = self.drafter.name
        if method not in (None, own, PLAIN):
            raise ConfigError(
                f"request {number} wants method {method!r}, but all rows of a batch share one draft model and the method "
                f"{own!r}: give {own!r} or {PLAIN!r}, or leave it out"
            )
        self._check_request(number, request)
        stops = ends_of(request.limits, self.eos)
        row = Row(
            tokens=list(request.prompt),
            sampling=sampling,
            number=number,
            padding=request.padding,
            source=request.source,
            draft_text=request.draft_text,
            history=history if self.verifier.reads == "argmax" else None,
            owner=request.cache_salt if request.owner is None else request.owner,
            stops=stops,
            nodes=request.nodes,
        )
        target, drafts = self.target, method != PLAIN
        entry = Entry(row, request, drafts=drafts, longest=target.max_length, tokenizer=self.tokenizer)
        processors = row.bound([*(sampling.processors or ()), *(sampling.warpers or ())])
        try_processors(processors, row.padded, stops, vocab=target.vocab_size, new=entry.remaining, device=target.device)
        if sampling.grammar is not None:
            row.constraint = self.grammars.constraint(sampling.grammar, stops)
        return entry

    def _check_request(self, number: int, request: Request) -> None:
        if request.logprobs is not None and request.logprobs.of == "sampled" and not self.verifier.lossless:
            raise ConfigError(
                f"request {number} wants logprobs of the sampled distribution, but verifier {self.verifier.name!r} also "
                'keeps other tokens: give of="model", or another verifier'
            )
        integer("seed", request.seed, 0, MAX_SEED)
        vocab = self.target.vocab_size
        if not request.prompt:
            raise ConfigError(
                f"prompt {number} is empty: give at least one token (a tokenizer with a beginning-of-text token adds it)"
            )
        if self.target.kind.reads_source != bool(request.source):
            raise ConfigError(
                f"request {number} has no source for the target's encoder: give its token ids"
                if self.target.kind.reads_source
                else f"request {number} has a source, but the target has no encoder: leave it out, or add it to the prompt"
            )
        if request.nodes is not None and request.nodes < 1:
            raise ConfigError(
                f"nodes of request {number} is {request.nodes}: give 1 or more, or method {PLAIN!r} for no draft"
            )
        for name, tokens in (("prompt", request.prompt), ("draft_text", request.draft_text)):
            if bad := [t for t in tokens if not 0 <= t < vocab]:
                raise ConfigError(f"{name} {number} holds token {bad[0]}, but the target knows 0 to {vocab - 1}")
        if bad := [t for t in request.limits.stop_token_ids if t >= vocab]:
            raise ConfigError(f"stop_token_ids holds {bad[0]}, but the target knows tokens 0 to {vocab - 1}: leave it out")
        self.check_room(request, f"prompt {number}")

    def check_room(self, request: Request, name: str = "the prompt") -> None:
        """Raise a CacheError for a prompt that leaves its text no room; ``name`` is the prompt's in it."""
        longest = self.target.max_length
        if longest is not None and len(request.prompt) >= longest:
            raise CacheError(
                f"{name} has {len(request.prompt)} tokens, but the models' context is {longest} and the text needs "
                "room: shorten the prompt, or take models with a longer context"
            )

    def limit(self, entry: Entry) -> int:
        """The deepest tree of a row: within the text's remaining tokens and the draft's context; 0 without a draft."""
        if not entry.drafts:
            return 0
        limit, draft = entry.remaining - 1, self.drafter.runner
        if entry.row.nodes is not None:
            limit = min(limit, entry.row.nodes)
        if draft is not None and draft.max_length is not None:
            limit = min(limit, draft.max_length - len(entry.row.tokens))
        return max(0, limit)
