"""The texts that are written now, and when one may join them: while the keys, values and states of all fit in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Final, final

import torch

from draftwood.api import Pair
from draftwood.core.rounds import Piece
from draftwood.engine.batch import Batch
from draftwood.engine.decode import Decoder
from draftwood.hardware.machine import available_memory
from draftwood.serve.decoding.jobs import Event, Job, TextDelta
from draftwood.serve.decoding.metrics import Metrics
from draftwood.serve.http.errors import ApiError, failed, refused
from draftwood.serve.http.log import REQUESTS
from draftwood.serve.http.settings import KEEP_ALIVE_SECONDS
from draftwood.trace.records import Trace

_LOG = logging.getLogger(__name__)
_SHARE: Final = 0.5  # of the free memory when the server starts
GIB: Final = 1 << 30
_JOINS, _WRITES = 256, 64
"""Tokens for which a text has memory ahead when it joins, and while it is written: more than a round writes."""


@final
class Admission:
    """The rows of a batch, the memory for their keys, values and running states, and what texts need of it.

    All rows of a batch have as many slots as the longest one, so ``n`` texts need ``n`` times the memory of the longest. A
    text has what it needs now and a little more, not what its limit allows: one without a limit would take all.

    Attributes:
        rows: the most texts that are written at a time.
        token: bytes of a token's keys and values, in target and draft; 0 where the models do not tell.
        states: bytes of a text's running states; 0 without.
        budget: bytes for all texts, without ``gibibytes`` half of the memory that is free now; None for no limit. What the
            prefix cache takes of them is free for texts at any time.
    """

    def __init__(self, pair: Pair, rows: int, gibibytes: float | None) -> None:
        self.rows = rows
        self.token = pair.target.token_bytes + getattr(pair.draft, "token_bytes", 0)
        self.states = pair.target.row_bytes + getattr(pair.draft, "row_bytes", 0)
        room = free_memory(pair.target.device)
        self.budget = (room and int(room * _SHARE)) if gibibytes is None else int(gibibytes * GIB)

    @property
    def longest(self) -> int | None:
        """Tokens of the longest text that fits alone, with its prompt; None for no limit."""
        return max(0, self.budget - self.states) // self.token if self.budget and self.token else None

    def share(self, jobs: Iterable[Job], ahead: int = 0) -> float:
        """The part of the budget that these texts need with this many more tokens of each; above 1 they do not fit."""
        lengths = [min(job.length + ahead, job.longest) for job in jobs]
        if not self.budget or not lengths:
            return 0.0
        return len(lengths) * (max(lengths) * self.token + self.states) / self.budget


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free for a device; None where that is not known."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


@final
class Rows:
    """Jobs in a batch, and what happens to them when a round fails. Only the decoding thread uses them.

    Texts that do not fit in memory with the others wait here, the first come first. Where those that are written outgrow it,
    the last come pause: their memory goes, and they are read anew when they fit again. So the first always goes on, and the
    end of a text does not depend on the others. ``ended`` is called whenever a text has ended, however it did.

    An error of one text ends this text. After an error of the drafter all texts go on by plain decoding until none is left:
    their distribution is the same, and with a coupled verifier so are the texts. An error of the target ends the texts that
    are written now; those that wait are not affected.
    """

    def __init__(
        self, decoder: Decoder, admission: Admission, *, metrics: Metrics, ended: Callable[[], None], reuse: bool
    ) -> None:
        self._decoder = decoder
        self._reuse = reuse
        self._admission = admission
        self._metrics = metrics
        self._ended = ended
        self._jobs: list[Job] = []  # the first come first; those that wait for memory are the last
        self._open = ExitStack()
        self._batch: Batch | None = None  # made for the first text, so that the models are free without one
        self._draft_errors = 0  # of the batch
        self._restored = 0  # tokens
        self._reported = perf_counter()

    def __len__(self) -> int:
        """Number of texts, those that wait included."""
        return len(self._jobs)

    @property
    def memory(self) -> float:
        """The part of the memory for keys and values that is taken, from 0 to 1."""
        return self._admission.share(self._going)

    @property
    def running(self) -> int:
        """Number of texts that are written now."""
        return len(self._going)

    @property
    def _admitted(self) -> list[Job]:
        """The texts in the batch, those that are paused included."""
        return [job for job in self._jobs if job.row is not None]

    @property
    def _going(self) -> list[Job]:
        """Those of them that are not paused."""
        return [job for job in self._admitted if not job.paused]

    def add(self, jobs: Sequence[Job]) -> None:
        """Take texts; each joins before the next round, or waits for a row to end."""
        self._jobs += jobs
        self._admit()

    def _admit(self) -> None:
        """Let those that wait in, the first come first, as far as there are rows and memory."""
        for job in [one for one in self._jobs if one.row is None or one.paused]:
            going = self._going
            if going and (len(going) >= self._admission.rows or self._admission.share([*going, job], _JOINS) > 1):
                return
            if job.row is not None:
                job.paused = False
                self._present().resume(job.row)
                continue
            try:
                job.row = self._present().add(job.request, job.sampling, method=job.method)
                job.stats = self._present().stats(job.row)
            except Exception as error:
                self._emit(job, refused(error))

    def _pause(self) -> None:
        """Take the last texts out while all of them do not fit; one that nothing was written of has not grown."""
        while self._admission.share(self._going, _WRITES) > 1:
            written = [job for job in self._going if job.last is not None]
            if len(written) < 2:
                return
            assert written[-1].row is not None
            self._present().pause(written[-1].row)
            written[-1].paused = True
            self._metrics.count("num_preemptions")

    def drop(self, jobs: Sequence[Job]) -> None:
        """End texts without a further event. Those that have ended are ignored."""
        for job in jobs:
            if job in self._jobs:
                self._metrics.count("request_cancelled")
                self._leave_row(job)
                self._end(job)

    def cut(self) -> None:
        """End all texts as they are, with finish reason ``length``."""
        for job in list(self._jobs):
            self._leave_row(job)
            self._emit(job, TextDelta(tokens=(), text=job.held, finish_reason="length"))

    def fail(self, error: ApiError) -> None:
        for job in list(self._jobs):
            self._emit(job, error)

    def save(self) -> bool:
        """Write a text of the prefix cache to its folder, between two texts; False if there is none to write."""
        return self._decoder.prefixes.save()

    def close(self) -> None:
        """Give the models back."""
        self._batch, self._draft_errors = None, 0
        self._open.close()

    def step(self) -> None:
        """One round; its pieces are delivered."""
        self._pause()
        batch, jobs = self._present(), {job.row: job for job in self._admitted}
        try:
            pieces = batch.step()
        except Exception as error:
            self._restart(error)
        else:
            self._report(batch, jobs)
            for row, found in batch.failed.items():
                self._metrics.count("round_failure", 1, "request")
                _LOG.error("a text of %s failed", jobs[row].name, exc_info=found)
                self._emit(jobs[row], failed(found))
            for piece in pieces:
                self._take(jobs[piece.row], piece)
            self._metrics.count("round_failure", batch.draft_errors - self._draft_errors, "drafter")
            self._draft_errors = batch.draft_errors
        if (folder := self._decoder.prefixes.folder) is not None:
            self._metrics.count("prefix_cache_restored", folder.tokens - self._restored)
            self._restored = folder.tokens
        if not self._admitted:
            self.close()
        self._admit()

    def _report(self, batch: Batch, jobs: Mapping[int | None, Job]) -> None:
        """Log from time to time how much of a long prompt was read."""
        reading, now = batch.reading, perf_counter()
        if reading is None:
            self._reported = now
        elif now - self._reported > KEEP_ALIVE_SECONDS:
            self._reported, job = now, jobs[reading[0]]
            REQUESTS.info("%s: %d of %d tokens of its prompt are read", job.name, reading[1], len(job.request.prompt))

    def _present(self) -> Batch:
        if self._batch is None:
            opened = self._decoder.batch(rows=self._admission.rows, reuse=self._reuse, tolerant=True)
            self._batch = self._open.enter_context(opened)
        return self._batch

    def _leave_row(self, job: Job) -> None:
        if job.row is not None:
            self._present().drop(job.row)

    def _take(self, job: Job, piece: Piece) -> None:
        now, count, metrics = perf_counter(), len(piece.tokens), self._metrics
        event = TextDelta.from_piece(piece, _recorded(job, piece))
        if job.last is None:
            cached = job.stats.cached_tokens
            metrics.count("prompt_tokens", len(job.request.prompt))
            metrics.count("prefix_cache_hits", cached)
            metrics.count("prefix_cache_hit_requests", cached > 0)
            metrics.observe("time_to_first_token", now - job.arrived)
        else:
            for _ in range(count):
                metrics.observe("inter_token_latency", (now - job.last) / count)
        metrics.count("generation_tokens", count)
        if event.draft is not None:
            metrics.add_draft(event.draft)
        job.last, job.held = now, piece.held
        self._emit(job, event)

    def _emit(self, job: Job, event: Event) -> None:
        """Deliver an event; the last one ends the text. Before an error comes what was held back of the text."""
        if isinstance(event, ApiError):
            if job.held:
                job.deliver(TextDelta(tokens=(), text=job.held, finish_reason=None))
            self._metrics.count("request_failure")
            self._end(job)
        elif event.finish_reason is not None:
            self._metrics.count("request_success", 1, event.finish_reason)
            self._metrics.observe("e2e_request_latency", perf_counter() - job.arrived)
            self._end(job)
        job.deliver(event)

    def _end(self, job: Job) -> None:
        self._jobs.remove(job)
        self._ended()

    def _restart(self, error: Exception) -> None:
        """Go on after an error of the target, with the texts that wait. Where none is written yet, the error came from
        reading the first prompt, and its text ends."""
        _LOG.error("a round failed", exc_info=error)
        self._metrics.count("round_failure", 1, "target")
        admitted = self._admitted
        written = max(1, len(admitted) - self._present().waiting)
        self.close()
        for place, job in enumerate(admitted):
            if place < written or job.last is not None:
                self._emit(job, failed(error))
            else:
                job.row = None


def _recorded(job: Job, piece: Piece) -> Trace | None:
    """The trace of a text with one more round, if one is wanted. A fault of recording ends the trace, not the text."""
    if job.recorder is None:
        return None
    try:
        job.recorder.take(replace(piece, row=0))
        [trace] = job.recorder.traces()
        return trace
    except Exception:
        _LOG.exception("a trace failed")
        job.recorder = None
        return None
