"""Streams for ``async for``: the rounds run in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, current_thread

from draftwood.core.rounds import Piece
from draftwood.engine.in_use import InUse


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
