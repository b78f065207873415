"""One thread writes all texts; handlers submit jobs to it, and get pieces from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Final, Literal, TypeAlias, TypeVar, final

import torch

from draftwood.engine.decode import Decoder
from draftwood.hardware.machine import release_free_memory
from draftwood.serve.decoding.jobs import Job
from draftwood.serve.decoding.metrics import Metrics
from draftwood.serve.decoding.rows import Admission, Rows
from draftwood.serve.http.errors import RETRY_SECONDS, ApiError, refused, unavailable

T = TypeVar("T")
State: TypeAlias = Literal["ready", "draining", "stopped"]
THREAD: Final = "draftwood-decoding"
IDLE_SECONDS: Final = 1.0
"""After so long without a text, freed memory is given back. That takes 20 to 90 ms for the bundled pair, and its first text
after it takes memory anew, so a pause between two texts of one client does not pay for it."""
_LOG = logging.getLogger(__name__)


@final
class Scheduler:
    """Owns the decoding thread. All methods may be called from any thread.

    Args:
        queue: the most texts that wait.
        reuse: use the prefix cache.

    Attributes:
        room: the most texts that are written or wait.
        texts: number of texts that were submitted and have not ended.
        state: ``draining`` takes no texts and writes those it has; ``stopped`` writes none, after :meth:`stop` or an error.
    """

    def __init__(self, decoder: Decoder, admission: Admission, *, queue: int, metrics: Metrics, reuse: bool = True) -> None:
        self._rows = Rows(decoder, admission, metrics=metrics, ended=self._ended, reuse=reuse)
        self.room = admission.rows + queue
        self.texts = 0
        self._lock = Lock()
        self.state: State = "ready"
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = False
        self._thread = Thread(target=self._run, name=THREAD, daemon=True)
        self._threads = torch.get_num_threads()  # a new thread may find the number of another model's present round
        self._metrics = metrics
        metrics.watch(
            model_loaded=lambda: 1,
            num_requests_running=lambda: self._rows.running,
            num_requests_waiting=lambda: max(0, self.texts - self._rows.running),
            kv_cache_usage_perc=lambda: self._rows.memory,
        )

    def start(self) -> None:
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take all of these jobs, or none; raises an ApiError if they do not fit now (429, 503)."""
        self._take(len(jobs), partial(self._rows.add, jobs))

    def _take(self, count: int, command: Callable[[], None]) -> None:
        """Make room for so many texts, and give the decoding thread a command; raises what :meth:`submit` raises."""
        with self._lock:
            if self.state != "ready":
                raise unavailable(f"the server is {self.state} and takes no requests: ask again later, or another server")
            if self.texts + count > self.room:
                raise ApiError(
                    429,
                    f"the queue is full: {self.texts} texts are written or wait, of at most {self.room}; ask again later",
                    code="queue_full",
                    headers={"Retry-After": str(RETRY_SECONDS)},
                )
            self.texts += count
            self._commands.put(command)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs without further events, before the next round. Those that have ended are ignored."""
        self._commands.put(partial(self._rows.drop, jobs))

    def work(self, parts: Iterator[T]) -> Future[list[T]]:
        """All items of an iterator, one between two rounds each; it counts as a text. Raises as :meth:`submit`."""
        future: Future[list[T]] = Future()
        found: list[T] = []

        def take() -> None:
            try:
                if self.state == "stopped":
                    raise unavailable("the server has stopped: ask again later, or another server")
                found.append(next(parts))
            except StopIteration:
                future.set_result(found)
            except Exception as error:
                future.set_exception(refused(error))
            else:
                self._commands.put(take)

        def begin() -> None:
            if future.set_running_or_notify_cancel():
                take()

        self._take(1, begin)
        future.add_done_callback(lambda _: self._ended())
        return future

    def drain(self) -> None:
        """Take no further jobs."""
        with self._lock:
            if self.state == "ready":
                self.state = "draining"

    def cut(self) -> None:
        """Take no further jobs, and end all texts as they are after the present round."""
        self.drain()
        self._commands.put(self._rows.cut)

    def stop(self) -> None:
        """End the thread after the present round; texts that are left end with an error."""
        self.drain()
        self._stopping = True
        self._commands.put(self.drain)  # so that a thread that waits for a command goes on
        if self._thread.is_alive():
            self._thread.join()
        self._metrics.watch()

    def _ended(self) -> None:
        with self._lock:
            self.texts -= 1

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while not self._stopping:
                self._run_command(wait=not len(self._rows))
                if len(self._rows) and not self._stopping:
                    self._rows.step()
        except BaseException:  # the thread ends, and says so
            _LOG.critical("the decoding thread has failed", exc_info=True)
        finally:
            with self._lock:
                self.state = "stopped"
            self._run_command(wait=False)  # jobs that nobody has read yet
            self._rows.fail(unavailable("the server has stopped before this text ended: ask again"))
            self._rows.close()
            while self._rows.save():
                pass

    def _run_command(self, *, wait: bool) -> None:
        """Do what was submitted so far; with ``wait`` there will be at least one command."""
        if wait:
            try:
                command = self._commands.get(timeout=IDLE_SECONDS)
            except Empty:
                while self._commands.empty() and self._rows.save():
                    pass
                release_free_memory()
                command = self._commands.get()
            command()
        for _ in range(self._commands.qsize()):
            self._commands.get()()
