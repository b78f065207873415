"""The texts of one response, and its trace, as they come from the decoding thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import Any, Final, TypeVar, final

from starlette.requests import ClientDisconnect

from draftwood.core.token_texts import TokenTexts
from draftwood.draft.alignment import Alignment
from draftwood.serve.decoding.jobs import Draft, Event, Job, TextDelta
from draftwood.serve.decoding.scheduler import Scheduler
from draftwood.serve.http.errors import ApiError
from draftwood.serve.http.log import ENTRY
from draftwood.serve.openai.message import ThoughtTokens
from draftwood.serve.openai.reading import Reading
from draftwood.trace.records import Trace

T = TypeVar("T")
_UNFINISHED: Final = "The text was stopped, or it failed: what came after the last round was not recorded."


@final
class LiveTrace:
    """A trace that grows, or one that was recorded before.

    Attributes:
        latest: the trace so far; it is replaced, never changed.
        ended: whether it grows no more.
        whole: whether it ended with its text.
    """

    def __init__(self, latest: Trace, *, grows: bool = False) -> None:
        self.latest = latest
        self.ended = self.whole = not grows
        self._news = asyncio.Event()

    def update(self, trace: Trace, *, last: bool) -> None:
        """Take the trace after a further round."""
        self.latest, self.ended, self.whole = trace, last, last
        self._emit()

    def close(self) -> None:
        """The text has ended, or was given up."""
        if not self.ended:
            self.latest = replace(self.latest, remarks=[*self.latest.remarks, _UNFINISHED])
            self.ended = True
            self._emit()

    def _emit(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def grown(self, seen: Trace) -> None:
        """Wait until there is more than what was seen, or until the end."""
        while self.latest is seen and not self.ended:
            await self._news.wait()

    async def finished(self) -> Trace:
        while not self.ended:
            await self.grown(self.latest)
        return self.latest


@final
@dataclass(kw_only=True, eq=False)
class Answer:
    """The texts of one response, as a request wants them and as they come.

    Attributes:
        jobs: the texts.
        choices: number of texts of each prompt, which come one after the other.
        warnings: what of the request was ignored.
        reading: of the answers to a chat.
        trace: of its text, where one is wanted.
        left: the texts that have not ended.
        drafts: of all rounds so far.
        began: when the first part of the texts came, in nanoseconds on the clock of ``perf_counter_ns``; 0 before.
    """

    jobs: Sequence[Job]
    choices: int = 1
    warnings: Sequence[str] = ()
    reading: Reading = field(default_factory=Reading)
    trace: LiveTrace | None = None
    left: dict[int, Job] = field(default_factory=dict, init=False)
    drafts: list[Draft] = field(default_factory=list, init=False)
    began: int = field(default=0, init=False)

    def start(self, scheduler: Scheduler, texts: TokenTexts) -> None:
        """Have the texts written; called and closed in the event loop. ``texts`` are of single tokens.

        Raises:
            ApiError: the server takes no texts.
        """
        self._scheduler, self._events, entry = scheduler, asyncio.Queue[tuple[int, Event]](), ENTRY.get()
        self._written = self._passes = 0  # tokens so far, and the passes of the target that wrote them
        self._predicted: dict[int, tuple[list[int], Alignment]] = {
            index: ([], Alignment(job.request.draft_text, 0, 0))
            for index, job in enumerate(self.jobs)
            if job.request.draft_text
        }  # the tokens so far of texts that may repeat another one, and where they stand in it
        splits = self.reading.thinks is not None
        self._thoughts = [ThoughtTokens(self.reading, texts) for _ in self.jobs] if splits else []
        if entry is not None:
            entry.counts = self._counts
        for index, job in enumerate(self.jobs):
            job.deliver, job.arrived = partial(_deliver, asyncio.get_running_loop(), self._events, index), perf_counter()
            if entry is not None:
                job.name = entry.id
            if job.only_scored:
                logprobs = None if job.request.logprobs is None else ()
                job.deliver(TextDelta(tokens=(), text="", finish_reason="length", logprobs=logprobs))
        if written := [job for job in self.jobs if not job.only_scored]:
            scheduler.submit(written)
        self.left = dict(enumerate(self.jobs))

    async def events(self, silence: float) -> AsyncIterator[tuple[int, TextDelta] | None]:
        """Choice and event in the order of writing, None after so many silent seconds; raises a text's ApiError."""
        while self.left:
            try:
                async with asyncio.timeout(silence):  # wait_for of Python 3.11 loses a cancellation that meets an event
                    index, event = await self._events.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(event, ApiError):
                del self.left[index]
                raise event
            self.began = self.began or perf_counter_ns()
            self._written += len(event.tokens)
            self._passes += bool(event.tokens)
            if self._thoughts:
                self._thoughts[index].push(event.tokens)
            if index in self._predicted:
                tokens, alignment = self._predicted[index]
                tokens += event.tokens
                alignment.follow(tokens, 0)
            if event.draft is not None:
                self.drafts.append(event.draft)
            if self.trace is not None and event.trace is not None:
                self.trace.update(event.trace, last=event.finish_reason is not None)
            if event.finish_reason is not None:
                del self.left[index]
            yield index, event

    def close(self) -> None:
        """End the texts that have not ended."""
        self._scheduler.cancel(list(self.left.values()))
        self.left = {}
        if self.trace is not None:
            self.trace.close()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(job.request.prompt) for job in self.jobs[:: self.choices])

    def usage(self) -> dict[str, Any]:
        """Tokens, in OpenAI's words. Of a prompt, those count as cached that no choice has read."""
        read, written, choices = self.prompt_tokens, self._written, self.choices
        cached = [job.stats.cached_tokens for job in self.jobs]
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {
                "cached_tokens": sum(min(cached[at : at + choices]) for at in range(0, len(cached), choices))
            },
        } | self._details()

    def _details(self) -> dict[str, Any]:
        """How many tokens of the request's prediction the texts repeat, and how many tokens their reasoning has."""
        found = [alignment for _, alignment in self._predicted.values()]
        kept, wanted = sum(one.kept for one in found), sum(len(one.old) for one in found)
        counts = {"accepted_prediction_tokens": kept, "rejected_prediction_tokens": wanted - kept} if found else {}
        counts |= {"reasoning_tokens": sum(one.count for one in self._thoughts)} if self._thoughts else {}
        return {"completion_tokens_details": counts} if counts else {}

    def _counts(self) -> dict[str, float]:
        found: dict[str, float] = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self._written}
        return found | ({"tokens_per_pass": round(self._written / self._passes, 2)} if self._passes else {})


def _deliver(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[tuple[int, Event]], index: int, event: Event) -> None:
    """Called by the decoding thread."""
    with suppress(RuntimeError):  # the loop is closed, and no event is read any more
        loop.call_soon_threadsafe(events.put_nowait, (index, event))


async def while_present(receive: Callable[[], Awaitable[Any]], work: Awaitable[T]) -> T:
    """The result of work; raises ClientDisconnect if the client of a request, whose body was read, goes before its end."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
