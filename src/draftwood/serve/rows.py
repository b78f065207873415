"""The texts that are written now. Only the decoding thread uses them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import final

from draftwood.engine.batch import Batch
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Piece
from draftwood.serve.admission import Admission
from draftwood.serve.errors import ApiError, failed, refused
from draftwood.serve.jobs import Event, Job, TextDelta
from draftwood.serve.metrics import Metrics
from draftwood.trace.record import Recorder
from draftwood.trace.records import Trace

_LOG = logging.getLogger(__name__)


@final
@dataclass(kw_only=True)
class _Text:
    """A job, its recorder while one works, when its last piece came (None before the first one), and text held back."""

    job: Job
    recorder: Recorder | None
    last: float | None = None
    held: str = ""


@final
class Rows:
    """Jobs in a batch, and what happens to them when a round fails.

    An error of one text ends this text. After an error of the drafter all texts go on by plain decoding until none is left:
    their distribution is the same, and with a coupled verifier so are the texts. An error of the target ends the texts that
    are written now; those that wait are not affected.

    Args:
        decoder: writes the texts.
        most: the most texts that are written at a time.
        metrics: count what happens.
        ended: is called with every job that has ended, however it did.
        admission: texts that do not fit in memory with the others wait here, the first come first; None for no limit.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        most: int,
        metrics: Metrics,
        ended: Callable[[Job], None],
        admission: Admission | None = None,
    ) -> None:
        self._decoder = decoder
        self._most = most
        self._admission = admission or Admission(rows=most)
        self._waiting: list[Job] = []  # for memory
        self._metrics = metrics
        self._ended = ended
        self._texts: dict[int, _Text] = {}  # by row, the first come first
        self._open = ExitStack()
        self._batch: Batch | None = None  # made for the first text, so that the models are free without one
        self._draft_errors = 0  # of the batch

    def __len__(self) -> int:
        """Number of texts, those that wait for a row included."""
        return len(self._texts) + len(self._waiting)

    @property
    def memory(self) -> float:
        """The part of the memory for keys and values that is taken, from 0 to 1."""
        return self._admission.share([text.job.request for text in list(self._texts.values())])

    @property
    def running(self) -> int:
        """Number of texts that are written now."""
        return min(len(self._texts), self._most)

    def add(self, job: Job) -> None:
        """Take a text; it joins before the next round, or waits for a row to end."""
        self._waiting.append(job)
        self._admit()

    def _admit(self) -> None:
        """Let those that wait for memory in, as far as they fit."""
        while self._waiting:
            requests = [text.job.request for text in self._texts.values()]
            if requests and self._admission.share([*requests, self._waiting[0].request]) > 1:
                return
            self._open_row(self._waiting.pop(0))

    def _open_row(self, job: Job) -> None:
        try:
            row = self._present().add(job.request, job.sampling, method=job.method)
        except Exception as error:
            self._metrics.failed.inc()
            self._ended(job)
            job.deliver(refused(error))
        else:
            self._texts[row] = _Text(job=job, recorder=job.recorder)

    def drop(self, job: Job) -> None:
        """End a text without a further event. One that has ended is ignored."""
        if job in self._waiting:
            self._metrics.cancelled.inc()
            self._waiting.remove(job)
            self._ended(job)
        for row, text in self._texts.items():
            if text.job is job:
                self._metrics.cancelled.inc()
                self._present().drop(row)
                self._end(row)
                return

    def cut(self) -> None:
        """End all texts as they are, with finish reason ``length``."""
        self._admit_waiting()
        for row in list(self._texts):
            self._present().drop(row)
            self._emit(row, TextDelta(tokens=(), text=self._texts[row].held, finish_reason="length"))

    def fail(self, error: ApiError) -> None:
        """End all texts with an error."""
        self._admit_waiting()
        for row in list(self._texts):
            self._emit(row, error)

    def _admit_waiting(self) -> None:
        """Before all texts end: none waits for memory, which costs nothing before the next round."""
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            self._open_row(job)

    def close(self) -> None:
        """Give the models back."""
        self._batch, self._draft_errors = None, 0
        self._open.close()

    def step(self) -> None:
        """One round; its pieces are delivered."""
        batch = self._present()
        try:
            pieces = batch.step()
        except Exception as error:
            self._restart(error)
        else:
            for row, found in batch.failed.items():
                self._metrics.failed_rounds.labels("request").inc()
                _LOG.error("a text failed", exc_info=found)
                self._emit(row, failed(found))
            for piece in pieces:
                self._take(piece.row, piece)
            self._metrics.failed_rounds.labels("drafter").inc(batch.draft_errors - self._draft_errors)
            self._draft_errors = batch.draft_errors
        if not self._texts:
            self.close()
        self._admit()

    def _present(self) -> Batch:
        if self._batch is None:
            self._batch = self._open.enter_context(self._decoder.batch(rows=self._most, tolerant=True))
        return self._batch

    def _take(self, row: int, piece: Piece) -> None:
        text, now = self._texts[row], perf_counter()
        event = TextDelta.from_piece(piece, _recorded(text, piece))
        count, metrics = len(piece.tokens), self._metrics
        if text.last is None:
            metrics.prompt_tokens.inc(len(text.job.request.prompt))
            metrics.first_token.observe(now - text.job.arrived)
        else:
            for _ in range(count):
                metrics.between_tokens.observe((now - text.last) / count)
        metrics.generation_tokens.inc(count)
        if event.draft is not None:
            metrics.drafts.add(event.draft)
        text.last, text.held = now, piece.held
        self._emit(row, event)

    def _emit(self, row: int, event: Event) -> None:
        """Deliver an event; the last one ends the text. Before an error comes what was held back of the text."""
        job, metrics, held = self._texts[row].job, self._metrics, self._texts[row].held
        if isinstance(event, ApiError):
            if held:
                job.deliver(TextDelta(tokens=(), text=held, finish_reason=None))
            metrics.failed.inc()
            self._end(row)
        elif event.finish_reason is not None:
            metrics.ended.labels(event.finish_reason).inc()
            metrics.whole.observe(perf_counter() - job.arrived)
            self._end(row)
        job.deliver(event)

    def _end(self, row: int) -> None:
        self._ended(self._texts.pop(row).job)

    def _restart(self, error: Exception) -> None:
        """Go on after an error of the target, with the texts that wait.

        Where none is written yet, the error came from reading the first prompt, and its text ends.
        """
        _LOG.error("a round failed", exc_info=error)
        self._metrics.failed_rounds.labels("target").inc()
        present = list(self._texts)[: max(1, len(self._texts) - self._present().waiting)]
        self.close()
        for row in present:
            self._emit(row, failed(error))
        waiting, self._texts = [text.job for text in self._texts.values()], {}
        self._waiting[:0] = waiting
        self._admit()


def _recorded(text: _Text, piece: Piece) -> Trace | None:
    """The trace of a text with one more round, if one is wanted. A fault of recording ends the trace, not the text."""
    if text.recorder is None:
        return None
    try:
        text.recorder.take(replace(piece, row=0))
        [trace] = text.recorder.traces()
        return trace
    except Exception:
        _LOG.exception("a trace failed")
        text.recorder = None
        return None
