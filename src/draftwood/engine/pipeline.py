"""What writes texts together: a target, a drafter and a verifier; and the rows that they are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, final

from draftwood.core.constraint import Constraint, Grammars
from draftwood.core.counter_rng import check_seed
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.processors import for_request, try_processors
from draftwood.core.rounds import Stats
from draftwood.core.settings import Sampling
from draftwood.core.verifiers import check_temperature
from draftwood.core.warping import check_bias
from draftwood.draft import Drafter
from draftwood.draft.none import NoDraft
from draftwood.engine.output import RowOutput
from draftwood.engine.requests import Request
from draftwood.engine.target import Target
from draftwood.verify import Verifier

PLAIN: Final = NoDraft.name  # the method of a row for which nothing is drafted


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One text of a batch.

    Attributes:
        number: of the row in its batch, from 0 in the order of requests.
        request, sampling: as given.
        drafts: whether anything is drafted for it.
        output: the growing text.
        constraint: the text under the grammar of its sampling; None without one.
        stats: updated after every round.
    """

    number: int
    request: Request
    sampling: Sampling
    drafts: bool
    output: RowOutput
    constraint: Constraint | None = None
    stats: Stats = field(default_factory=Stats)

    @property
    def read(self) -> list[int]:
        """The prompt without its last token, which is the first root."""
        return list(self.output.tokens[:-1])


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """What writes texts together.

    Attributes:
        target, drafter, verifier: the three of every round.
        tokenizer: for text and stop strings; None for token ids only.
        eos: end-of-text token ids.
        grammars: compiled for the target's tokens.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    tokenizer: Any
    eos: frozenset[int]
    grammars: Grammars

    @property
    def max_length(self) -> int | None:
        """Most tokens of prompt and text together: the target's context."""
        return self.target.runner.max_length

    def check(self, sampling: Sampling) -> None:
        """Raise a ConfigError if the verifier is for temperature 0 and the sampling is not."""
        if self.verifier.greedy_only:
            check_temperature(self.verifier.name, sampling.temperature)

    def open(self, number: int, request: Request, sampling: Sampling, method: str | None) -> Row:
        """A row for a request.

        Raises:
            ConfigError: an empty prompt, unknown tokens, a source that is missing or has no encoder, a seed out of range, a
                verifier for another temperature, another method, a logits processor that depends on other rows, a grammar
                that these models cannot follow, or log-probabilities of a sampled distribution that the verifier does not
                follow.
            CacheError: a prompt that fills the models' context.
        """
        self.check(sampling)
        self._check_logprobs(number, request)
        check_bias(sampling, self.target.runner.vocab_size)
        own = self.drafter.name
        if method not in (None, own, PLAIN):
            raise ConfigError(
                f"request {number} wants method {method!r}, but all rows of a batch share one draft model and the method "
                f"{own!r}: give {own!r} or {PLAIN!r}, or leave it out"
            )
        self._check_request(number, request)
        output = RowOutput(
            request.prompt,
            request.limits,
            eos=self.eos,
            longest=self.max_length,
            tokenizer=self.tokenizer,
            criterion=request.criterion,
            final=request.final,
        )
        given = (*(sampling.processors or ()), *(sampling.warpers or ()))
        processors = [for_request(one, number, output.prompt_length) for one in given]
        runner = self.target.runner
        try_processors(
            processors, output.tokens, output.stops, vocab=runner.vocab_size, new=output.remaining, device=runner.device
        )
        constraint = None if sampling.grammar is None else self.grammars.constraint(sampling.grammar, output.stops)
        return Row(
            number=number,
            request=request,
            sampling=sampling,
            drafts=method != PLAIN,
            output=output,
            constraint=constraint,
        )

    def _check_logprobs(self, number: int, request: Request) -> None:
        if request.logprobs is not None and request.logprobs.of == "sampled" and not self.verifier.lossless:
            raise ConfigError(
                f"request {number} wants logprobs of the sampled distribution, but verifier {self.verifier.name!r} also "
                'keeps other tokens: give of="model", or another verifier'
            )

    def _check_request(self, number: int, request: Request) -> None:
        check_seed(request.seed)
        vocab, length = self.target.runner.vocab_size, len(request.prompt)
        if not length:
            raise ConfigError(
                f"prompt {number} is empty: give at least one token (a tokenizer with a beginning-of-text token adds it)"
            )
        if self.target.runner.reads_source != bool(request.source):
            raise ConfigError(
                f"request {number} has no source for the target's encoder: give its token ids"
                if self.target.runner.reads_source
                else f"request {number} has a source, but the target has no encoder: leave it out, or add it to the prompt"
            )
        if request.nodes is not None and request.nodes < 1:
            raise ConfigError(
                f"nodes of request {number} is {request.nodes}: give 1 or more, or method {PLAIN!r} for no draft"
            )
        if bad := [t for t in request.prompt if not 0 <= t < vocab]:
            raise ConfigError(f"prompt {number} holds token {bad[0]}, but the target knows 0 to {vocab - 1}")
        if bad := [t for t in request.limits.stop_token_ids if t >= vocab]:
            raise ConfigError(f"stop_token_ids holds {bad[0]}, but the target knows tokens 0 to {vocab - 1}: leave it out")
        if self.max_length is not None and length >= self.max_length:
            raise CacheError(
                f"prompt {number} has {length} tokens, but the models' context is {self.max_length} and the text needs "
                "room: shorten the prompt, or take models with a longer context"
            )

    def limit(self, row: Row) -> int:
        """The deepest tree of a row: within the text's remaining tokens and the draft's context; 0 without a draft."""
        if not row.drafts:
            return 0
        limit = row.output.remaining - 1
        if row.request.nodes is not None:
            limit = min(limit, row.request.nodes)
        if self.drafter.max_length is not None:
            limit = min(limit, self.drafter.max_length - len(row.output.tokens))
        return max(0, limit)
