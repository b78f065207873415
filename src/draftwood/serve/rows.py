"""The texts that are written now. Only the decoding thread uses them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import final

from draftwood.core.rounds import Piece
from draftwood.engine.batch import Batch
from draftwood.engine.decode import Decoder
from draftwood.serve.admission import Admission
from draftwood.serve.errors import ApiError, failed, refused
from draftwood.serve.jobs import Event, Job, TextDelta
from draftwood.serve.metrics import Metrics
from draftwood.trace.records import Trace

_LOG = logging.getLogger(__name__)


@final
class Rows:
    """Jobs in a batch, and what happens to them when a round fails.

    An error of one text ends this text. After an error of the drafter all texts go on by plain decoding until none is left:
    their distribution is the same, and with a coupled verifier so are the texts. An error of the target ends the texts that
    are written now; those that wait are not affected.

    Args:
        decoder: writes the texts.
        admission: texts that do not fit in memory with the others wait here, the first come first.
        metrics: count what happens.
        ended: is called whenever a text has ended, however it did.
        reuse: use the prefix cache.
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

    def __len__(self) -> int:
        """Number of texts, those that wait included."""
        return len(self._jobs)

    @property
    def memory(self) -> float:
        """The part of the memory for keys and values that is taken, from 0 to 1."""
        return self._admission.share([job.request for job in self._admitted])

    @property
    def running(self) -> int:
        """Number of texts that are written now."""
        return min(len(self._admitted), self._admission.rows)

    @property
    def _admitted(self) -> list[Job]:
        """The texts in the batch, those that wait for a row there included."""
        return [job for job in self._jobs if job.row is not None]

    def add(self, jobs: Sequence[Job]) -> None:
        """Take texts; each joins before the next round, or waits for a row to end."""
        self._jobs += jobs
        self._admit()

    def _admit(self) -> None:
        """Let those that wait for memory in, as far as they fit."""
        for job in self._jobs[len(self._admitted) :]:
            requests = [one.request for one in self._admitted]
            if requests and self._admission.share([*requests, job.request]) > 1:
                return
            try:
                job.row = self._present().add(job.request, job.sampling, method=job.method)
                job.stats = self._present().stats(job.row)
            except Exception as error:
                self._emit(job, refused(error))

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
        """End all texts with an error."""
        for job in list(self._jobs):
            self._emit(job, error)

    def close(self) -> None:
        """Give the models back."""
        self._batch, self._draft_errors = None, 0
        self._open.close()

    def step(self) -> None:
        """One round; its pieces are delivered."""
        batch, jobs = self._present(), {job.row: job for job in self._admitted}
        try:
            pieces = batch.step()
        except Exception as error:
            self._restart(error)
        else:
            for row, found in batch.failed.items():
                self._metrics.count("round_failure", 1, "request")
                _LOG.error("a text of %s failed", jobs[row].name, exc_info=found)
                self._emit(jobs[row], failed(found))
            for piece in pieces:
                self._take(jobs[piece.row], piece)
            self._metrics.count("round_failure", batch.draft_errors - self._draft_errors, "drafter")
            self._draft_errors = batch.draft_errors
        if not self._admitted:
            self.close()
        self._admit()

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
        """Go on after an error of the target, with the texts that wait.

        Where none is written yet, the error came from reading the first prompt, and its text ends.
        """
        _LOG.error("a round failed", exc_info=error)
        self._metrics.count("round_failure", 1, "target")
        admitted = self._admitted
        written = max(1, len(admitted) - self._present().waiting)
        self.close()
        for job in admitted[:written]:
            self._emit(job, failed(error))
        for job in admitted[written:]:
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
