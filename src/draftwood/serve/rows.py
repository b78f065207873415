"""The texts that are written now. Only the decoding thread uses them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import final

from draftwood.engine.batch import Batch
from draftwood.engine.decode import Decoder
from draftwood.engine.parts import PLAIN
from draftwood.engine.requests import Piece
from draftwood.serve.errors import ApiError, failed, refused
from draftwood.serve.jobs import Event, Job, Written
from draftwood.serve.metrics import Metrics
from draftwood.trace.record import Recorder
from draftwood.trace.records import Trace

_LOG = logging.getLogger(__name__)


@final
@dataclass(kw_only=True)
class _Text:
    """A job and what was written for it: the tokens of every piece, and when the last one came.

    Its ``recorder`` knows the verifier of the first batch only, so it ends with a failed round.
    """

    job: Job
    recorder: Recorder | None
    written: list[list[int]] = field(default_factory=list)
    last: float = 0.0


@final
class Rows:
    """Jobs in a batch, and what happens to them when a round fails.

    After a failed round every text that took part in it goes on alone for one round of plain decoding. A text that fails
    there ends with an error. If none does, drafting is at fault: then all texts go on by plain decoding until none is left.
    Their distribution is the same, and with a coupled verifier so are the texts.

    Args:
        drafting, plain: decoders of the same models, with and without drafts.
        most: the most texts that are written at a time.
        metrics: count what happens.
        ended: is called with every job that has ended, however it did.
    """

    def __init__(
        self, drafting: Decoder, plain: Decoder, *, most: int, metrics: Metrics, ended: Callable[[Job], None]
    ) -> None:
        self._drafting = drafting
        self._plain = plain
        self._most = most
        self._metrics = metrics
        self._ended = ended
        self._texts: dict[int, _Text] = {}  # by row, the first come first
        self._open = ExitStack()
        self._batch: Batch | None = None  # made for the first text, so that the models are free without one
        self._drafts = True

    def __len__(self) -> int:
        """Number of texts, those that wait for a row included."""
        return len(self._texts)

    @property
    def running(self) -> int:
        """Number of texts that are written now."""
        return min(len(self._texts), self._most)

    def add(self, job: Job) -> None:
        """Take a text; it joins before the next round, or waits for a row to end."""
        self._admit(_Text(job=job, recorder=job.recorder))

    def drop(self, job: Job) -> None:
        """End a text without a further event. One that has ended is ignored."""
        for row, text in self._texts.items():
            if text.job is job:
                self._metrics.cancelled.inc()
                self._present().drop(row)
                self._end(row)
                return

    def cut(self) -> None:
        """End all texts as they are, with finish reason ``length``."""
        for row in list(self._texts):
            self._present().drop(row)
            self._tell(row, Written(tokens=(), text="", finish_reason="length"))

    def fail(self, error: ApiError) -> None:
        """End all texts with an error."""
        for row in list(self._texts):
            self._tell(row, error)

    def close(self) -> None:
        """Give the models back."""
        self._batch = None
        self._open.close()

    def step(self) -> None:
        """One round; its pieces are delivered."""
        try:
            pieces = self._present().step()
        except Exception as error:
            self._recover(error)
        else:
            for piece in pieces:
                self._take(piece.row, piece)
        if not self._texts:
            self.close()
            self._drafts = True

    def _present(self) -> Batch:
        if self._batch is None:
            decoder = self._drafting if self._drafts else self._plain
            self._batch = self._open.enter_context(decoder.batch(rows=self._most))
        return self._batch

    def _admit(self, text: _Text) -> None:
        job = text.job
        try:
            row = self._present().add(job.request, job.sampling, method=job.method, written=text.written)
        except Exception as error:
            self._metrics.failed.inc()
            self._ended(job)
            job.deliver(refused(error))
        else:
            self._texts[row] = text

    def _take(self, row: int, piece: Piece) -> None:
        text, now = self._texts[row], perf_counter()
        event = Written.of(piece, _recorded(text, piece))
        count, metrics = len(piece.tokens), self._metrics
        if not text.written:
            metrics.prompt_tokens.inc(len(text.job.request.prompt))
            metrics.first_token.observe(now - text.job.arrived)
        else:
            for _ in range(count):
                metrics.between_tokens.observe((now - text.last) / count)
        metrics.generation_tokens.inc(count)
        if event.draft is not None:
            metrics.drafts.add(event.draft)
        text.written.append(piece.tokens)
        text.last = now
        self._tell(row, event)

    def _tell(self, row: int, event: Event) -> None:
        """Deliver an event; the last one ends the text."""
        job, metrics = self._texts[row].job, self._metrics
        if isinstance(event, ApiError):
            metrics.failed.inc()
            self._end(row)
        elif event.finish_reason is not None:
            metrics.ended.labels(event.finish_reason).inc()
            metrics.whole.observe(perf_counter() - job.arrived)
            self._end(row)
        job.deliver(event)

    def _end(self, row: int) -> None:
        self._ended(self._texts.pop(row).job)

    def _recover(self, error: Exception) -> None:
        """Go on after a failed round."""
        _LOG.error("a round failed", exc_info=error)
        failing, present = 0, list(self._texts)[: len(self._texts) - self._present().waiting]
        self.close()
        for text in self._texts.values():
            text.recorder = None
        for row in present:
            try:
                piece = self._alone(self._texts[row])
            except Exception as found:
                failing += 1
                self._tell(row, failed(found))
            else:
                self._take(row, piece)
        self._metrics.failed_rounds.labels("request" if failing else "drafter" if self._drafts else "batch").inc()
        self._drafts = self._drafts and failing > 0
        left, self._texts = list(self._texts.values()), {}
        for text in left:
            self._admit(text)

    def _alone(self, text: _Text) -> Piece:
        """The next piece of a text, by plain decoding and without other texts."""
        job = text.job
        with self._plain.batch(rows=1) as batch:
            batch.add(job.request, job.sampling, method=PLAIN, written=text.written)
            while not (pieces := batch.step()):
                pass
            return pieces[0]


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
