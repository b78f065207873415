"""Rows that come and go: texts join a batch between two rounds, and leave it when they end.

This is the decode loop: draft -> target -> verify -> output -> commit. Plain decoding is the same loop with an empty tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from time import perf_counter
from typing import final

import numpy as np
import torch

from draftwood.core.counter_rng import CounterRng
from draftwood.core.errors import ConfigError
from draftwood.core.machine import torch_threads
from draftwood.core.rng import Rng
from draftwood.core.rounds import STAGES, Clock, Round, Stats
from draftwood.core.sampling import Sampler
from draftwood.core.settings import Sampling
from draftwood.engine.parts import Parts, Row
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
    """

    def __init__(self, parts: Parts, *, most: int | None = None, noise: Rng | None = None, reuse: bool = False) -> None:
        self.parts = parts
        self._most = most
        self._source = noise
        self._reuse = reuse
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
        """Number of requests that wait for a row to end."""
        return len(self._waiting)

    def add(
        self, request: Request, sampling: Sampling, *, method: str | None = None, written: Sequence[Sequence[int]] = ()
    ) -> int:
        """Take a request; it joins before the next round, or waits for a row to end. Returns the row's number.

        Args:
            request: the text.
            sampling: its settings; rows at temperature 0 and others may share a batch.
            method: ``ar`` drafts nothing for this row; None or the drafter's own name is the drafter's method.
            written: the tokens of every piece so far of a text that another batch began; the text goes on after them.

        Raises:
            ConfigError, CacheError: as :meth:`draftwood.engine.parts.Parts.open`; ``written`` is a whole text.
        """
        row = self.parts.open(self._next, request, sampling, method)
        for tokens in written:
            row.output.take(tokens)
        if row.output.finish_reason is not None:
            raise ConfigError(f"request {self._next} has ended with the tokens that are written already: leave it out")
        self._waiting[row.number] = row
        self._next += 1
        return row.number

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
        """One round: a piece for every row that takes part in it; none without any row.

        Raises:
            NumericsError: scores that are NaN. The batch is then unusable, as after any other error of a round.
        """
        clock = Clock()
        self._join(clock)
        if not (rows := self._rows):
            return []
        with torch_threads(self.parts.threads):
            this_round = self._round(clock)
            pieces = [_take(row, i, this_round) for i, row in enumerate(rows)]
            for part in (self.parts.target, self.parts.drafter):
                part.commit(this_round)
        self._keep([i for i, row in enumerate(rows) if row.output.finish_reason is None])
        _count(rows, pieces, this_round, clock.stop())
        return pieces

    def _join(self, clock: Clock) -> None:
        """Give both models the texts of new rows; the clock of the round includes the encoder's seconds."""
        room = len(self._waiting) if self._most is None else self._most - len(self._rows)
        new = [self._waiting.pop(number) for number in list(islice(self._waiting, max(0, room)))]
        if not new:
            return
        for stage, part in (("target", self.parts.target), ("draft", self.parts.drafter)):
            before = part.forward_seconds
            if not self._rows:
                part.clear(keep=self._reuse)
            part.add([row.read for row in new], [row.request.source for row in new])
            clock.claim(stage, part.forward_seconds - before)
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
        limits = [self.parts.limit(row) for row in self._rows]
        with torch.inference_mode():
            before = drafter.forward_seconds
            own = sampler.for_round()
            tree = drafter.draft(root, own, rng, limits)
            clock.claim("draft", drafter.forward_seconds - before)
            before = target.forward_seconds
            scores = target.score(tree)
            clock.claim("target", target.forward_seconds - before)
            matches = verifier.reads == "argmax"
            certain = matches or not verifier.greedy_only
            target_log_probs = own.target(scores.logits, tree.prefixes, certain=certain, scores=matches)
            began = perf_counter()
            verdict = verify(verifier, tree, target_log_probs, rng)
            target_log_probs.check_reached(verdict.paths)
            clock.claim("verify", perf_counter() - began)
        return Round(tree=tree, scores=scores, target_log_probs=target_log_probs, verdict=verdict, seconds=clock.seconds)


def _take(row: Row, index: int, this_round: Round) -> Piece:
    count, text = row.output.take(this_round.tokens[index])
    return Piece(
        row=row.number,
        tokens=list(row.output.tokens[len(row.output.tokens) - count :]),
        drafted=min(count, len(this_round.paths[index])),
        text=text,
        finish_reason=row.output.finish_reason,
        round=this_round,
        round_row=index,
    )


def _count(rows: list[Row], pieces: list[Piece], this_round: Round, seconds: dict[str, float]) -> None:
    """Update the statistics. The rows share a round's seconds equally, so that their sum is the total."""
    means, drafted = this_round.verdict.expected, this_round.tree.drafted
    for i, (row, piece) in enumerate(zip(rows, pieces, strict=True)):
        stats = row.stats
        if means is not None:
            stats.expected = (stats.expected or 0.0) + means[i]
        stats.accepted[len(this_round.paths[i])] += 1
        stats.drafted += drafted[i]
        stats.new_tokens += len(piece.tokens)
        for stage in STAGES:
            stats.seconds[stage] += seconds[stage] / len(pieces)
