"""Rows that come and go: texts join a batch between two rounds, and leave it when they end.

This is the decode loop: draft -> target -> verify -> output -> commit. Plain decoding is the same loop with an empty tree.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.counter_rng import CounterRng
from draftwood.core.draws import FREE_DRAWS
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.rng import Rng, RoundRng
from draftwood.core.rounds import STAGES, Clock, Round, Stats
from draftwood.core.sampling import Sampler
from draftwood.core.settings import Sampling
from draftwood.core.threads import chosen_threads
from draftwood.core.tree import DraftTree
from draftwood.draft.none import FAILED, root_alone
from draftwood.draft.tolerant import TolerantDrafter
from draftwood.engine import logprobs
from draftwood.engine.parts import Parts, Row
from draftwood.engine.prompts import CHUNK, Prompts
from draftwood.engine.requests import Piece, Request
from draftwood.verify.sparse import verify


@final
class Batch:
    """Texts that are written together, one round per :meth:`step`; :meth:`Decoder.batch` makes one.

    A row's text is the one that it has alone: its random choices depend on its seed and its own text, never on other rows.

    Args:
        parts: what writes the texts.
        most: the most rows of a round; further requests wait until a row ends. None for no limit.
        noise: the source of random choices, row by row in the order of requests; by default the requests' seeds.
        reuse: the memory of a single text serves the next one, as far as both begin alike.
        chunk: the most tokens of new prompts that a step reads alongside rows that write.
        tolerant: an error of one row ends this row only, and an error of the drafter only costs its drafts.

    Attributes:
        failed: by number, the rows that ended with an error in the last step; always empty unless ``tolerant``.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        most: int | None = None,
        noise: Rng | None = None,
        reuse: bool = False,
        chunk: int = CHUNK,
        tolerant: bool = False,
    ) -> None:
        if chunk < 1:
            raise ConfigError(f"chunk is {chunk}: give the number of prompt tokens that a step may read, 1 or more")
        self._tolerant = TolerantDrafter(parts.drafter) if tolerant else None
        self.parts = parts = parts if self._tolerant is None else replace(parts, drafter=self._tolerant)
        self.failed: dict[int, Exception] = {}
        self._draft_nan = 0
        self._most = most
        self._source = noise
        self._prompts = Prompts(parts, chunk, reuse=reuse)
        self._next = 0  # number of the next request
        self._waiting: dict[int, Row] = {}  # by number, the first come first
        self._rows: list[Row] = []
        self._sampler: Sampler | None = None  # of the present rows; None after a change
        self._noise: Rng | None = None

    def __len__(self) -> int:
        """Number of unfinished texts, those that wait included."""
        return len(self._waiting) + len(self._rows)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a row to end, or whose prompts are not read yet."""
        return len(self._waiting)

    def add(self, request: Request, sampling: Sampling, *, method: str | None = None) -> int:
        """Take a request; it joins between two rounds, when its prompt is read. Returns the row's number.

        Args:
            request: the text.
            sampling: its settings; rows at temperature 0 and others may share a batch.
            method: ``ar`` drafts nothing for this row; None or the drafter's own name is the drafter's method.

        Raises:
            ConfigError, CacheError: as :meth:`draftwood.engine.parts.Parts.open`.
        """
        row = self.parts.open(self._next, request, sampling, method)
        self._waiting[row.number] = row
        self._next += 1
        return row.number

    @property
    def draft_errors(self) -> int:
        """How often the drafter raised or had scores that are NaN, while the texts went on; 0 unless ``tolerant``."""
        return self._draft_nan + (0 if self._tolerant is None else self._tolerant.errors)

    def stats(self, number: int) -> Stats:
        """The statistics of an unfinished row, an object that is updated after every round.

        Raises:
            ConfigError: there is no such row.
        """
        if number in self._waiting:
            return self._waiting[number].stats
        for row in self._rows:
            if row.number == number:
                return row.stats
        raise ConfigError(f"row {number} is not in the batch: it has ended, or was never added")

    def drop(self, number: int) -> None:
        """End a row without a further piece. A row that has ended is ignored.

        Raises:
            ConfigError: no row has had this number.
        """
        if not 0 <= number < self._next:
            raise ConfigError(f"row {number} is not in the batch: give the number that add returned")
        self._waiting.pop(number, None)
        self._keep([i for i, row in enumerate(self._rows) if row.number != number])

    def step(self) -> list[Piece]:
        """One round: a piece for every row that takes part in it and has not :attr:`failed`; none without any row.

        Raises:
            NumericsError: scores that are NaN, of the target after the text or of the draft, unless ``tolerant``. After an
                error of a round the batch is unusable.
        """
        clock, self.failed = Clock(), {}
        with chosen_threads(self.parts.target.runner):
            self._join(clock)
            if not (rows := self._rows):
                return []
            this_round = self._round(clock)
            pieces = [piece for i, row in enumerate(rows) if (piece := self._take(row, i, this_round)) is not None]
            for part in (self.parts.target, self.parts.drafter):
                part.commit(this_round)
        self._keep([i for i, row in enumerate(rows) if row.output.finish_reason is None and row.number not in self.failed])
        _count(rows, pieces, this_round, clock.stop())
        return pieces

    def _join(self, clock: Clock) -> None:
        """Give both models the prompts of new rows."""
        coming = list(self._waiting.values())
        if self._most is not None:
            coming = coming[: max(0, self._most - len(self._rows))]
        if coming and (new := self._prompts.join(coming, self._rows, clock)):
            for row in new:
                del self._waiting[row.number]
            self._rows = [*self._rows, *new]
            self._sampler = self._noise = None

    def _keep(self, stay: list[int]) -> None:
        """Go on with these rows only."""
        rows = self._rows
        if len(stay) == len(rows):
            return
        if stay:  # the memory of the last rows is cleared when others come
            for part in (self.parts.target, self.parts.drafter):
                part.drop([i for i in range(len(rows)) if i not in stay])
        self._rows = [rows[i] for i in stay]
        self._sampler = self._noise = None

    def _bound(self) -> tuple[Sampler, Rng]:
        """The settings and the random choices of the present rows."""
        if self._sampler is None or self._noise is None:
            rows, runner = self._rows, self.parts.target.runner
            self._sampler = Sampler(
                [row.sampling for row in rows],
                [row.output.tokens for row in rows],
                [row.output.prompt_length for row in rows],
                runner.vocab_size,
                [row.output.stops for row in rows],
                [row.number for row in rows],
                runner.device,
                [row.constraint for row in rows],
                [row.request.nodes for row in rows],
            )
            if self._source is not None:
                self._noise = self._source.select([row.number for row in rows])
            else:
                seeds, greedy = [row.request.seed for row in rows], [row.sampling.greedy for row in rows]
                self._noise = CounterRng(seeds, runner.device, greedy=greedy)
        return self._sampler, self._noise

    def _round(self, clock: Clock) -> Round:
        target, drafter, verifier = self.parts.target, self.parts.drafter, self.parts.verifier
        sampler, noise = self._bound()
        rng = noise.at([len(row.output.tokens) - 1 for row in self._rows])
        last = np.array([row.output.tokens[-1] for row in self._rows], np.int64)
        root = torch.from_numpy(last).to(target.runner.device)
        with torch.inference_mode():
            before = drafter.forward_seconds
            own = sampler.for_round()
            tree = self._draft(root, own, rng)
            clock.claim("draft", drafter.forward_seconds - before)
            before = target.forward_seconds
            scores = target.score(tree)
            clock.claim("target", target.forward_seconds - before)
            matches = verifier.reads == "argmax"
            target_log_probs = own.target(
                scores.logits, tree.prefixes, certain=matches or not verifier.greedy_only, scores=matches
            )
            self._look_at_draft(own)
            began = perf_counter()
            verdict = verify(verifier, tree, target_log_probs, rng)
            clock.claim("verify", perf_counter() - began)
        return Round(tree=tree, scores=scores, target_log_probs=target_log_probs, verdict=verdict, seconds=clock.seconds)

    def _draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng) -> DraftTree:
        """The drafter's trees. Rows whose drawn trees an error has lost have failed.

        The error may depend on the tokens that were drawn. Texts that went on without them would have another distribution.
        """
        limits, drafter = [self.parts.limit(row) for row in self._rows], self.parts.drafter
        try:
            tree = drafter.draft(root, sampler, rng, limits)
        except Exception as error:
            if self._tolerant is None:
                raise
            if drafter.draw not in FREE_DRAWS and self.parts.verifier.reads != "argmax":
                lost = ModelError(f"the drafter failed and its tree, which was drawn, is lost ({error}): write it again")
                for row in self._rows:
                    if not row.sampling.greedy:
                        self._fail(row, lost)
            return root_alone(root, FAILED)
        if tree.error is not None and self._tolerant is None:
            raise tree.error
        return tree

    def _look_at_draft(self, sampler: Sampler) -> None:
        """Count, or raise, that scores of the draft were NaN."""
        if sampler.checks is not None and sampler.checks.draft_error is not None:
            if self._tolerant is None:
                raise sampler.checks.draft_error
            self._draft_nan += 1

    def _take(self, row: Row, index: int, this_round: Round) -> Piece | None:
        """The row's piece; None if the row has failed."""
        if row.number in self.failed:
            return None
        try:
            return _piece(row, index, this_round)
        except Exception as error:
            self._fail(row, error)
            return None

    def _fail(self, row: Row, error: Exception) -> None:
        if self._tolerant is None:
            raise error
        self.failed[row.number] = error


def _piece(row: Row, index: int, this_round: Round) -> Piece:
    """What the round adds to a row; raises the error of a dead end, unless the text has ended before it."""
    dead = this_round.target_log_probs.dead_end(index, this_round.paths[index])
    count, text = row.output.take(this_round.tokens[index][: None if dead is None else dead[0]])
    if dead is not None and row.output.finish_reason is None:
        raise dead[1]
    tokens = list(row.output.tokens[len(row.output.tokens) - count :])
    return Piece(
        row=row.number,
        tokens=tokens,
        drafted=min(count, len(this_round.paths[index])),
        text=text,
        held=row.output.held,
        finish_reason=row.output.finish_reason,
        round=this_round,
        round_row=index,
        logprobs=logprobs.of_round(this_round, index, tokens, row.request.logprobs, greedy=row.sampling.greedy),
    )


def _count(rows: list[Row], pieces: list[Piece], this_round: Round, seconds: dict[str, float]) -> None:
    """Update the statistics. The rows share a round's seconds equally, so that their sum is the total."""
    means, drafted = this_round.verdict.expected, this_round.tree.drafted
    for piece in pieces:
        i = piece.round_row
        stats = rows[i].stats
        if means is not None:
            stats.expected = (stats.expected or 0.0) + means[i]
        stats.accepted[len(this_round.paths[i])] += 1
        stats.drafted += drafted[i]
        stats.new_tokens += len(piece.tokens)
        for stage in STAGES:
            stats.seconds[stage] += seconds[stage] / len(pieces)
