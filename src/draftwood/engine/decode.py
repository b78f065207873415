"""The decode loop: draft -> target -> verify -> output -> commit. Plain decoding is the same loop with an empty tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from time import perf_counter
from typing import Any, final

import numpy as np
import torch

from draftwood.core.counter_rng import CounterRng
from draftwood.core.errors import CacheError, ConfigError, PairingError
from draftwood.core.machine import threads_alongside, torch_threads
from draftwood.core.processors import for_request, try_processors
from draftwood.core.rng import Rng
from draftwood.core.rounds import STAGES, Clock, Round, Stats
from draftwood.core.sampling import Sampler
from draftwood.core.settings import Sampling
from draftwood.draft import Drafter
from draftwood.draft.none import NoDraft
from draftwood.engine.output import FinishReason, RowOutput
from draftwood.engine.requests import Piece, Request, Result
from draftwood.engine.target import Target
from draftwood.runners.protocols import Runner
from draftwood.verify import Verifier
from draftwood.verify.sparse import verify


@final
class Decoder:
    """A target with a matching drafter and verifier.

    Args:
        target: the model whose distribution the output follows.
        drafter: grows the trees; None for plain decoding.
        verifier: accepts one path of each tree.
        tokenizer: for text and stop strings; None for token ids only.
        eos: end-of-text token ids.
        in_use: a lock shared by all decoders of the same models, whose memory holds one batch at a time.

    Raises:
        PairingError: the verifier is not exact for the drafter's way of choosing siblings.
    """

    def __init__(
        self,
        target: Runner,
        drafter: Drafter | None,
        verifier: Verifier,
        *,
        tokenizer: Any = None,
        eos: Sequence[int] = (),
        in_use: Lock | None = None,
    ) -> None:
        self.drafter: Drafter = drafter if drafter is not None else NoDraft()
        self.verifier = verifier
        if self.drafter.draw not in verifier.draws:
            fitting = ", ".join(sorted(verifier.draws))
            raise PairingError(
                f"verifier {verifier.name!r} is not exact for drafter {self.drafter.name!r}, whose siblings are drawn as "
                f"{self.drafter.draw.value!r}; it takes {fitting}. Use --verifier auto"
            )
        self.target = Target(target)
        self.tokenizer = tokenizer
        self.eos = frozenset(eos)
        self.stats: list[Stats] = []
        self._threads = threads_alongside(target)
        self._in_use = in_use or Lock()

    @property
    def max_length(self) -> int | None:
        """Most tokens of prompt and text together: the target's context."""
        return self.target.runner.max_length

    def stream(
        self, requests: Sequence[Request], sampling: Sampling, *, noise: Rng | None = None, reuse: bool = False
    ) -> Iterator[list[Piece]]:
        """Yield one list of pieces per round, with a piece for every unfinished row; close the iterator to cancel.

        ``self.stats`` holds one :class:`Stats` per request and is updated after every round. With ``reuse`` a single prompt
        is only read from where it differs from the models' last text; the keys and values before that are those in memory.

        Raises:
            ConfigError: an empty prompt, unknown tokens, models in use, a logits processor that depends on other rows.
            CacheError: a prompt that fills the models' context.
            NumericsError: scores that are NaN.
        """
        outputs = [self._open(i, request) for i, request in enumerate(requests)]
        if self.verifier.greedy_only and not sampling.greedy:
            raise ConfigError(
                f"verifier {self.verifier.name!r} is for temperature 0 only, but temperature is {sampling.temperature:g}: "
                "use --verifier auto, or temperature 0"
            )
        seeds = [request.seed for request in requests]
        source = noise if noise is not None else CounterRng(seeds, self.target.runner.device, greedy=sampling.greedy)
        for i, output in enumerate(outputs):
            self._try_processors(i, output, sampling)
        if not self._in_use.acquire(blocking=False):
            raise ConfigError("these models are generating already: finish or close that stream first, or load another pair")
        try:
            self.stats = [Stats() for _ in requests]
            if outputs:
                clock = self._begin(outputs, [request.source for request in requests], reuse)
                yield from self._rounds(outputs, sampling, source, clock)
        finally:
            self._in_use.release()

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        noise: Rng | None = None,
        reuse: bool = False,
        watch: Callable[[Piece], object] | None = None,
    ) -> list[Result]:
        """All finished texts; arguments and errors as for :meth:`stream`. ``watch`` is called with every piece."""
        texts = [""] * len(requests)
        tokens: list[list[int]] = [[] for _ in requests]
        reasons: list[FinishReason] = ["length"] * len(requests)
        for pieces in self.stream(requests, sampling, noise=noise, reuse=reuse):
            for piece in pieces:
                texts[piece.row] += piece.text
                tokens[piece.row] += piece.tokens
                reasons[piece.row] = piece.finish_reason or "length"
                if watch is not None:
                    watch(piece)
        return [
            Result(
                text=texts[i],
                token_ids=tokens[i],
                finish_reason=reasons[i],
                seed=request.seed,
                lossless=self.verifier.lossless,
                stats=self.stats[i],
            )
            for i, request in enumerate(requests)
        ]

    def _try_processors(self, index: int, output: RowOutput, sampling: Sampling) -> None:
        given = (*(sampling.processors or ()), *(sampling.warpers or ()))
        processors = [for_request(one, index, output.prompt_length) for one in given]
        runner = self.target.runner
        try_processors(
            processors, output.tokens, output.stops, vocab=runner.vocab_size, new=output.remaining, device=runner.device
        )

    def _open(self, index: int, request: Request) -> RowOutput:
        prompt, vocab = list(request.prompt), self.target.runner.vocab_size
        if not prompt:
            raise ConfigError(
                f"prompt {index} is empty: give at least one token (a tokenizer with a beginning-of-text token adds it)"
            )
        if self.target.runner.reads_source != bool(request.source):
            raise ConfigError(
                f"request {index} has no source for the target's encoder: give its token ids"
                if self.target.runner.reads_source
                else f"request {index} has a source, but the target has no encoder: leave it out, or add it to the prompt"
            )
        if bad := [t for t in prompt if not 0 <= t < vocab]:
            raise ConfigError(f"prompt {index} holds token {bad[0]}, but the target knows 0 to {vocab - 1}")
        if bad := [t for t in request.limits.stop_token_ids if t >= vocab]:
            raise ConfigError(f"stop_token_ids holds {bad[0]}, but the target knows tokens 0 to {vocab - 1}: leave it out")
        if self.max_length is not None and len(prompt) >= self.max_length:
            raise CacheError(
                f"prompt {index} has {len(prompt)} tokens, but the models' context is {self.max_length} and the text needs "
                "room: shorten the prompt, or take models with a longer context"
            )
        return RowOutput(
            prompt,
            request.limits,
            eos=self.eos,
            longest=self.max_length,
            tokenizer=self.tokenizer,
            criterion=request.criterion,
            final=request.final,
        )

    def _begin(self, outputs: list[RowOutput], sources: list[Sequence[int]], reuse: bool) -> Clock:
        """Give both models the texts; returns the clock of the first round, which includes the encoder's seconds."""
        clock = Clock()
        for stage, part in (("target", self.target), ("draft", self.drafter)):
            before = part.forward_seconds
            part.clear(keep=reuse)
            part.add([output.tokens[:-1] for output in outputs], sources)
            clock.claim(stage, part.forward_seconds - before)
        return clock

    def _rounds(self, outputs: list[RowOutput], sampling: Sampling, noise: Rng, clock: Clock) -> Iterator[list[Piece]]:
        rows = list(range(len(outputs)))
        sampler = Sampler(
            sampling,
            [output.tokens for output in outputs],
            [output.prompt_length for output in outputs],
            self.target.runner.vocab_size,
            [output.stops for output in outputs],
            device=self.target.runner.device,
        )
        while rows:
            with torch_threads(self._threads):
                this_round = self._round([outputs[r] for r in rows], sampler, noise, clock)
                pieces = [self._take(outputs[r], r, i, this_round) for i, r in enumerate(rows)]
                for part in (self.target, self.drafter):
                    part.commit(this_round)
            going = [i for i, r in enumerate(rows) if outputs[r].finish_reason is None]
            if 0 < len(going) < len(rows):
                sampler, noise = sampler.select(going), noise.select(going)
                for part in (self.target, self.drafter):
                    part.drop([i for i in range(len(rows)) if i not in going])
            self._count(pieces, this_round, clock.stop())
            rows = [rows[i] for i in going]
            yield pieces
            clock = Clock()

    def _round(self, outputs: list[RowOutput], sampler: Sampler, noise: Rng, clock: Clock) -> Round:
        positions = [len(output.tokens) - 1 for output in outputs]
        rng = noise.at(positions)
        root = torch.from_numpy(np.array([output.tokens[-1] for output in outputs], np.int64)).to(self.target.runner.device)
        limits = [self._limit(output) for output in outputs]
        with torch.inference_mode():
            before = self.drafter.forward_seconds
            own = sampler.for_round()
            tree = self.drafter.draft(root, own, rng, limits)
            clock.claim("draft", self.drafter.forward_seconds - before)
            before = self.target.forward_seconds
            scores = self.target.score(tree)
            clock.claim("target", self.target.forward_seconds - before)
            certain = not (self.verifier.greedy_only and self.verifier.reads == "probabilities")
            target_log_probs = own.target(scores.logits, tree.prefixes, certain=certain)
            began = perf_counter()
            verdict = verify(self.verifier, tree, target_log_probs, rng)
            target_log_probs.check_reached(verdict.paths)
            clock.claim("verify", perf_counter() - began)
        return Round(tree=tree, scores=scores, target_log_probs=target_log_probs, verdict=verdict, seconds=clock.seconds)

    def _limit(self, output: RowOutput) -> int:
        """The deepest tree of a row: within the text's remaining tokens and the draft's context."""
        limit = output.remaining - 1
        if self.drafter.max_length is not None:
            limit = min(limit, self.drafter.max_length - len(output.tokens))
        return max(0, limit)

    @staticmethod
    def _take(output: RowOutput, row: int, index: int, this_round: Round) -> Piece:
        count, text = output.take(this_round.tokens[index])
        return Piece(
            row=row,
            tokens=list(output.tokens[len(output.tokens) - count :]),
            drafted=min(count, len(this_round.paths[index])),
            text=text,
            finish_reason=output.finish_reason,
            round=this_round,
            round_row=index,
        )

    def _count(self, pieces: list[Piece], this_round: Round, seconds: dict[str, float]) -> None:
        """Update the statistics. The rows share a round's seconds equally, so that their sum is the total."""
        means, drafted = this_round.verdict.expected, this_round.tree.drafted
        for i, piece in enumerate(pieces):
            stats = self.stats[piece.row]
            if means is not None:
                stats.expected = (stats.expected or 0.0) + means[i]
            stats.accepted[len(this_round.paths[i])] += 1
            stats.drafted += drafted[i]
            stats.new_tokens += len(piece.tokens)
            for stage in STAGES:
                stats.seconds[stage] += seconds[stage] / len(pieces)
