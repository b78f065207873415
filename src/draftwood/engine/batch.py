"""Rows that come and go: texts join a batch between two rounds, and leave it when they end.

This is the decode loop: draft -> target -> verify -> output -> commit. Plain decoding is the same loop with an empty tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from time import perf_counter
from typing import final

import torch

from draftwood.core.errors import ConfigError
from draftwood.core.rng import Rng
from draftwood.core.rounds import STAGES, Piece, Round, Stats
from draftwood.engine import logprobs
from draftwood.engine.drafting import Drafting
from draftwood.engine.pipeline import Entry, Pipeline
from draftwood.engine.prefixes import PrefixCache
from draftwood.engine.prompts import Prompts
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
        most, noise, tolerant: as for :meth:`Decoder.batch`, with ``most`` for its ``rows``.

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
        tolerant: bool = False,
    ) -> None:
        self.pipeline = pipeline
        self.failed: dict[int, Exception] = {}
        self._drafting = Drafting(pipeline.drafter, pipeline.verifier, tolerant=tolerant)
        self._most = most
        self._source = noise
        self._prompts = Prompts(pipeline, self._drafting, prefixes)
        self._whole = True  # no round is unfinished
        self._next = 0  # number of the next request
        self._waiting: dict[int, Entry] = {}  # rows that join later, by number, the first come first
        self._paused: set[int] = set()  # numbers of those that do not join yet
        self._present: dict[int, Entry] = {}  # by number, in the order of the models' rows
        self._bound: tuple[Sampler, Rng] | None = None  # settings and noise of the present rows; None after a change

    def __len__(self) -> int:
        """Number of unfinished texts, those that wait included."""
        return len(self._waiting) + len(self._present)

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
        if (entry := self._present.get(number)) is not None:
            self._remove({number})
            self._waiting = {number: entry, **self._waiting}
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
        if (entry := self._waiting.get(number) or self._present.get(number)) is None:
            raise ConfigError(f"row {number} is not in the batch: it has ended, or was never added")
        return entry.stats

    def drop(self, number: int) -> None:
        """End a row without a further piece. A row that has ended is ignored.

        Raises:
            ConfigError: no row has had this number.
        """
        if not 0 <= number < self._next:
            raise ConfigError(f"row {number} is not in the batch: give the number that add returned")
        if (waiting := self._waiting.pop(number, None)) is not None:
            self._prompts.forget(waiting)
            if not self._present:
                self._prompts.clear()
        self._remove({number})

    def close(self) -> None:
        """End all rows without further pieces, unless a step has raised."""
        if self._whole:
            for number in [*self._waiting, *self._present]:
                self.drop(number)

    def step(self) -> list[Piece]:
        """One round: a piece for every row that takes part in it and has not :attr:`failed`; none without any row.

        Raises:
            NumericsError: scores that are NaN, of the target after the text or of the draft, unless ``tolerant``. After an
                error of a round the batch is unusable.
        """
        began, before, self.failed, self._whole = perf_counter(), self._forwards(), {}, False
        with chosen_threads(self.pipeline.target):
            self._join()
            if not (entries := list(self._present.values())):
                self._whole = True
                return []
            this_round, lengths = self._round(before), [len(entry.row.tokens) for entry in entries]
            pieces = [piece for i, entry in enumerate(entries) if (piece := self._take(entry, i, this_round)) is not None]
            this_round.taken.extend(len(entry.row.tokens) - old for entry, old in zip(entries, lengths, strict=True))
            self.pipeline.target.commit(this_round.joined)
            self._drafting.commit(this_round)
        self._whole = True
        self._remove(self.failed.keys() | {piece.row for piece in pieces if piece.finish_reason is not None})
        this_round.seconds["other"] = max(0.0, perf_counter() - began - sum(this_round.seconds.values()))
        _count(entries, pieces, this_round)
        return pieces

    def _forwards(self) -> dict[str, float]:
        """Seconds of both models' forwards so far, by stage."""
        return {"draft": self._drafting.forward_seconds, "target": self.pipeline.target.forward_seconds}

    def _join(self) -> None:
        """Give both models the prompts of new rows."""
        coming = [entry for number, entry in self._waiting.items() if number not in self._paused]
        coming = coming[: None if self._most is None else max(0, self._most - len(self._present))]
        for entry in self._prompts.join(coming, list(self._present.values())) if coming else ():
            self._present[entry.row.number] = self._waiting.pop(entry.row.number)
            self._bound = None

    def _remove(self, gone: Set[int]) -> None:
        """Go on without the rows of these numbers."""
        if gone := gone & self._present.keys():
            leaving = [self._present.pop(number) for number in [*self._present] if number in gone]
            for entry in leaving:
                if entry.row.number not in self.failed:
                    self._prompts.keep(entry)
            if rows := [entry.row for entry in self._present.values()]:
                self.pipeline.target.set_rows(rows)
                self._drafting.set_rows(rows)
            else:
                self._prompts.clear()
            self._bound = None
        self._prompts.trim(list(self._present.values()))

    def _settings_and_noise(self) -> tuple[Sampler, Rng]:
        """The settings and the random choices of the present rows."""
        if self._bound is None:
            target, rows = self.pipeline.target, [entry.row for entry in self._present.values()]
            if self._source is not None:
                noise = self._source.select([row.number for row in rows])
            else:
                seeds = [entry.request.seed for entry in self._present.values()]
                noise = CounterRng(seeds, target.device, greedy=[row.sampling.greedy for row in rows])
            self._bound = Sampler(rows, target.vocab_size), noise
        return self._bound

    def _round(self, before: Mapping[str, float]) -> Round:
        """The round; ``before`` are the seconds of the forwards when its step began."""
        target, verifier, drafting = self.pipeline.target, self.pipeline.verifier, self._drafting
        sampler, noise = self._settings_and_noise()
        rng = noise.at([len(row.tokens) - 1 for row in sampler.rows])
        root = [row.tokens[-1] for row in sampler.rows]
        with torch.inference_mode():
            sampler.begin_round()
            tree = drafting.draft(root, sampler, rng, list(map(self.pipeline.limit, self._present.values())))
            scores = target.extend(tree.tokens, tree.depths, tree.ancestors)
            certain = verifier.reads == "argmax" or not verifier.greedy_only
            pending = sampler.target(scores.logits, tree.prefixes, certain=certain, peaks=scores.peaks)
            drafting.look_at(sampler)
            began = perf_counter()
            verdict = verify(verifier, tree, pending, rng)
            took = perf_counter() - began
        seconds = {stage: now - before[stage] for stage, now in self._forwards().items()} | {"verify": took}
        return Round(tree=tree, scores=scores, target=pending, verdict=verdict, seconds=seconds)

    def _take(self, entry: Entry, index: int, this_round: Round) -> Piece | None:
        """A row's piece; None if the row has failed."""
        lost = self._drafting.lost
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


def _count(entries: list[Entry], pieces: list[Piece], this_round: Round) -> None:
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
            stats.seconds[stage] += this_round.seconds[stage] / len(pieces)
