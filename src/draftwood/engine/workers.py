"""Streams for ``async for``: the rounds run in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from threading import Thread, current_thread
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from draftwood.engine.in_use import InUse
from draftwood.engine.requests import Piece


class UsesModels(Protocol):
    """Whatever has a lock around its models."""

    @property
    def in_use(self) -> InUse: ...


P = ParamSpec("P")
S = TypeVar("S", bound=UsesModels)


def in_worker(
    method: Callable[Concatenate[S, P], Generator[Piece]],
) -> Callable[Concatenate[S, P], AsyncGenerator[Piece]]:
    """An asynchronous version of a method that returns a stream.

    Each piece is computed when it is wanted, in a thread of its own, and the event loop goes on meanwhile. If the loop over
    the pieces ends early or its task is cancelled, the stream is closed after its present round, and the models are free.
    """

    @wraps(method)
    def pieces(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Piece]:
        return _pieces(method(self, *args, **kwargs), self.in_use)

    return pieces


async def _pieces(stream: Generator[Piece], in_use: InUse) -> AsyncGenerator[Piece]:
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
