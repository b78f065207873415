"""Rows that come and go: texts join a batch between two rounds, and leave it when they end.

This is the decode loop: draft -> target -> verify -> output -> commit. Plain decoding is the same loop with an empty tree.
"""

from __future__ import annotations

from math import inf
from time import perf_counter
from typing import final

import torch

from draftwood.core.errors import ConfigError
from draftwood.core.rng import Rng
from draftwood.core.rounds import STAGES, Clock, Piece, Round, Stats
from draftwood.engine import logprobs
from draftwood.engine.drafting import Drafting
from draftwood.engine.output import Entry
from draftwood.engine.pipeline import Pipeline
from draftwood.engine.prefixes import PrefixCache
from draftwood.engine.prompts import ALONE, CHUNK, Prompts
from draftwood.engine.requests import Request
from draftwood.hardware.threads import chosen_threads
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from draftwood.verify.sparse import verify


@final
class Batch:
    """Texts that are written together, one round per :meth:`step`; :meth:`Decoder.batch` makes one.

    A row's text is the one that it has alone: its random choices depend on its seed and its own text, never on other rows.

    Args:
        pipeline: what writes the texts.
        prefixes: keeps the memory of texts that end, for later ones that begin alike; None keeps none.
        most, noise, chunk, tolerant: as for :meth:`Decoder.batch`, with ``most`` for its ``rows``.

    Attributes:
        failed: by number, the rows that ended with an error in the last step; always empty unless ``tolerant``.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        most: int | None = None,
        noise: Rng | None = None,
        prefixes: PrefixCache | None = None,
        chunk: int = CHUNK,
        tolerant: bool = False,
    ) -> None:
        if chunk < 1:
            raise ConfigError(f"chunk is {chunk}: give the number of prompt tokens that a step may read, 1 or more")
        self.pipeline = pipeline
        self.failed: dict[int, Exception] = {}
        self._drafting = Drafting(pipeline.drafter, pipeline.verifier, tolerant=tolerant)
        self._most = most
        self._source = noise
        self._prompts = Prompts(pipeline, self._drafting, chunk, prefixes, max(chunk, ALONE) if tolerant else inf)
        self._whole = True  # no round is unfinished
        self._next = 0  # number of the next request
        self._waiting: dict[int, Entry] = {}  # rows that join later, by number, the first come first
        self._paused: set[int] = set()  # numbers of those that do not join yet
        self._entries: list[Entry] = []
        self._bound: tuple[Sampler, Rng] | None = None  # settings and noise of the present rows; None after a change

    def __len__(self) -> int:
        """Number of unfinished texts, those that wait included."""
        return len(self._waiting) + len(self._entries)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a row to end, or whose prompts are not read yet."""
        return len(self._waiting)

    @property
    def reading(self) -> tuple[int, int] | None:
        """The row whose prompt is read in part, and how many tokens of it were read; None without one."""
        return self._prompts.reading

    def add(self, request: Request, sampling: Sampling, *, method: str | None = None) -> int:
        """Take a request; it joins between two rounds, when its prompt is read. Returns the row's number.

        Args:
            request: the text.
            sampling: its settings; rows at temperature 0 and others may share a batch.
            method: ``ar`` drafts nothing for this row; None or the drafter's own name is the drafter's method.

        Raises:
            ConfigError, CacheError: as :meth:`draftwood.engine.pipeline.Pipeline.open`.
        """
        number = self._next
        self._waiting[number] = self.pipeline.open(number, request, sampling, method, self._prompts.history)
        self._next += 1
        return number

    def pause(self, number: int) -> None:
        """Take a row out between two rounds: its text stays as it is, and its memory is free for others.

        Its drafts may be others afterwards, where drafters read hidden states. With a coupled verifier the text is the same
        as without a pause; with any, its distribution is.

        Raises:
            ConfigError: there is no such row.
        """
        self.stats(number)
        for place, entry in enumerate(self._entries):
            if entry.row.number == number:
                self._keep([i for i in range(len(self._entries)) if i != place])
                self._waiting = {number: entry, **self._waiting}
                break
        self._paused.add(number)

    def resume(self, number: int) -> None:
        """Let a paused row join again: its text goes on when all of it is read anew. Another row is ignored."""
        self._paused.discard(number)

    @property
    def draft_errors(self) -> int:
        """How often the drafter raised or had scores that are NaN, while the texts went on; 0 unless ``tolerant``."""
        return self._drafting.errors

    def stats(self, number: int) -> Stats:
        """The statistics of an unfinished row, an object that is updated after every round.

        Raises:
            ConfigError: there is no such row.
        """
        if number in self._waiting:
            return self._waiting[number].stats
        for entry in self._entries:
            if entry.row.number == number:
                return entry.stats
        raise ConfigError(f"row {number} is not in the batch: it has ended, or was never added")

    def drop(self, number: int) -> None:
        """End a row without a further piece. A row that has ended is ignored.

        Raises:
            ConfigError: no row has had this number.
        """
        if not 0 <= number < self._next:
            raise ConfigError(f"row {number} is not in the batch: give the number that add returned")
        if (waiting := self._waiting.pop(number, None)) is not None:
            self._prompts.forget(waiting)
            if not self._entries:
                self._prompts.clear()
        self._keep([i for i, entry in enumerate(self._entries) if entry.row.number != number])

    def close(self) -> None:
        """End all rows without further pieces, unless a step has raised."""
        if self._whole:
            for number in [*self._waiting, *(entry.row.number for entry in self._entries)]:
                self.drop(number)

    def step(self) -> list[Piece]:
        """One round: a piece for every row that takes part in it and has not :attr:`failed`; none without any row.

        Raises:
            NumericsError: scores that are NaN, of the target after the text or of the draft, unless ``tolerant``. After an
                error of a round the batch is unusable.
        """
        clock, self.failed, self._whole = Clock(), {}, False
        with chosen_threads(self.pipeline.target):
            self._join(clock)
            if not (entries := self._entries):
                self._whole = True
                return []
            this_round, before = self._round(clock), [len(entry.row.tokens) for entry in entries]
            pieces = [piece for i in range(len(entries)) if (piece := self._take(i, this_round)) is not None]
            this_round.taken.extend(len(entry.row.tokens) - old for entry, old in zip(entries, before, strict=True))
            self.pipeline.target.commit(this_round.joined)
            self._drafting.commit(this_round)
        self._whole = True
        ended = self.failed.keys() | {piece.row for piece in pieces if piece.finish_reason is not None}
        self._keep([i for i, entry in enumerate(entries) if entry.row.number not in ended])
        _count(entries, pieces, this_round, clock.stop())
        return pieces

    def _join(self, clock: Clock) -> None:
        """Give both models the prompts of new rows."""
        coming = [entry for number, entry in self._waiting.items() if number not in self._paused]
        coming = coming[: None if self._most is None else max(0, self._most - len(self._entries))]
        if coming and (new := self._prompts.join(coming, self._entries, clock)):
            for entry in new:
                del self._waiting[entry.row.number]
            self._entries = [*self._entries, *new]
            self._bound = None

    def _keep(self, stay: list[int]) -> None:
        """Go on with these rows only."""
        entries = self._entries
        if len(stay) == len(entries):
            self._prompts.trim(entries)
            return
        for i in set(range(len(entries))) - set(stay):
            if entries[i].row.number not in self.failed:
                self._prompts.keep(entries[i])
        self._entries = [entries[i] for i in stay]
        if stay:
            rows = [entry.row for entry in self._entries]
            self.pipeline.target.set_rows(rows)
            self._drafting.set_rows(rows)
        else:
            self._prompts.clear()
        self._prompts.trim(self._entries)
        self._bound = None

    def _settings_and_noise(self) -> tuple[Sampler, Rng]:
        """The settings and the random choices of the present rows."""
        if self._bound is None:
            target, rows = self.pipeline.target, [entry.row for entry in self._entries]
            if self._source is not None:
                noise = self._source.select([row.number for row in rows])
            else:
                seeds, greedy = [entry.request.seed for entry in self._entries], [row.sampling.greedy for row in rows]
                noise = CounterRng(seeds, target.device, greedy=greedy)
            self._bound = Sampler(rows, target.vocab_size), noise
        return self._bound

    def _round(self, clock: Clock) -> Round:
        target, verifier, drafting = self.pipeline.target, self.pipeline.verifier, self._drafting
        sampler, noise = self._settings_and_noise()
        rng = noise.at([len(row.tokens) - 1 for row in sampler.rows])
        root = [row.tokens[-1] for row in sampler.rows]
        with torch.inference_mode():
            sampler.begin_round()
            before = drafting.forward_seconds
            tree = drafting.draft(root, sampler, rng, [self.pipeline.limit(entry) for entry in self._entries])
            clock.seconds["draft"] += drafting.forward_seconds - before
            before = target.forward_seconds
            scores = target.extend(tree.tokens, tree.depths, tree.ancestors)
            clock.seconds["target"] += target.forward_seconds - before
            certain = verifier.reads == "argmax" or not verifier.greedy_only
            pending = sampler.target(scores.logits, tree.prefixes, certain=certain, peaks=scores.peaks)
            drafting.look_at(sampler)
            began = perf_counter()
            verdict = verify(verifier, tree, pending, rng)
            clock.seconds["verify"] += perf_counter() - began
        return Round(tree=tree, scores=scores, target=pending, verdict=verdict, seconds=clock.seconds)

    def _take(self, index: int, this_round: Round) -> Piece | None:
        """A row's piece; None if the row has failed."""
        entry, lost = self._entries[index], self._drafting.lost
        try:
            if lost is not None and not entry.row.sampling.greedy:
                raise lost
            return _piece(entry, index, this_round)
        except Exception as error:
            if not self._drafting.tolerant:
                raise
            self.failed[entry.row.number] = error
            return None


def _piece(entry: Entry, index: int, this_round: Round) -> Piece:
    """What the round adds to a row; raises the error of a dead end, unless the text has ended before it."""
    row = entry.row
    dead = this_round.target.dead_end(index, this_round.paths[index])
    count, text = entry.take(this_round.tokens[index][: None if dead is None else dead[0]])
    if dead is not None and entry.finish_reason is None:
        raise dead[1]
    tokens = row.tokens[len(row.tokens) - count :]
    return Piece(
        row=row.number,
        tokens=tokens,
        drafted=min(count, len(this_round.paths[index])),
        text=text,
        held=entry.held,
        finish_reason=entry.finish_reason,
        round=this_round,
        round_row=index,
        stop_text=entry.stop_text,
        logprobs=logprobs.of_round(this_round, index, tokens, entry.request.logprobs, greedy=row.sampling.greedy),
    )


def _count(entries: list[Entry], pieces: list[Piece], this_round: Round, seconds: dict[str, float]) -> None:
    """Update the statistics. The rows share a round's seconds equally, so that their sum is the total."""
    tree, drafted = this_round.tree, this_round.tree.drafted
    for piece in pieces:
        i = piece.round_row
        stats = entries[i].stats
        stats.accepted[len(this_round.paths[i])] += 1
        stats.drafted += drafted[i]
        if tree.size == 1 and tree.stop is not None:
            stats.undrafted[tree.stop] += 1
        stats.new_tokens += len(piece.tokens)
        for stage in STAGES:
            stats.seconds[stage] += seconds[stage] / len(pieces)
