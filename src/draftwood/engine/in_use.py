"""A lock around models, which refuses calls that would wait for themselves, and streams whose rounds run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Final, final

from draftwood.core.errors import ConfigError
from draftwood.core.rounds import Piece

_LOOK: Final = 1.0  # seconds after which a waiting call looks whether the thread that it waits for has ended
_GRACE: Final = 5.0  # seconds in which an event loop closes a stream that a task has just left


@final
class InUse:
    """A lock around the models of a batch."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._thread: Thread | None = None  # that uses the models
        self._waiting_for_it: set[object] = set()  # threads and tasks that cannot wait for the models
        self._for: dict[Thread, tuple[Thread, object]] = {}

    def acquire(self) -> None:
        """Wait until the models are free.

        Raises:
            ConfigError: this thread or task uses them itself; or a thread that has ended left a stream unfinished.
        """
        me = current_thread()
        thread, task = self._for.get(me, (me, me))
        began = monotonic()
        with self._changed:
            while self._thread is not None:
                own = me in self._waiting_for_it or monotonic() - began > _GRACE
                if own and self._waiting_for_it & {me, task}:
                    raise ConfigError(
                        "these models are generating already: finish or close that stream first (contextlib.closing or "
                        "aclosing do at the end of a block), or load another pair"
                    )
                if not self._thread.is_alive():
                    raise ConfigError(
                        "a thread that has ended left a stream of these models unfinished: close it, or load another pair"
                    )
                self._changed.wait(_LOOK)
            self._thread, self._waiting_for_it = me, {me, thread, task}

    def release(self) -> None:
        """Free the models for the next call; any thread may do so."""
        with self._changed:
            self._thread, self._waiting_for_it = None, set()
            self._changed.notify()

    @contextmanager
    def on_behalf_of(self, thread: Thread, task: object) -> Iterator[None]:
        """While inside, this thread works for a task of an event loop, which runs in another thread."""
        me = current_thread()
        self._for[me] = thread, task
        try:
            yield
        finally:
            del self._for[me]


async def in_worker(stream: Generator[Piece], in_use: InUse) -> AsyncGenerator[Piece]:
    """The pieces of a stream, each computed when it is wanted, in a thread of its own; the event loop goes on meanwhile.

    If the loop over the pieces ends early or its task is cancelled, the stream is closed after its present round, and the
    models are free.
    """
    loop, worker = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix="draftwood-stream")
    own = current_thread(), asyncio.current_task()
    try:
        while (piece := await loop.run_in_executor(worker, _next, stream, in_use, *own)) is not None:
            yield piece
    finally:
        closed = loop.run_in_executor(worker, stream.close)  # after the present round
        worker.shutdown(wait=False)
        await asyncio.shield(closed)


def _next(stream: Generator[Piece], in_use: InUse, thread: Thread, task: object) -> Piece | None:
    with in_use.on_behalf_of(thread, task):
        return next(stream, None)
