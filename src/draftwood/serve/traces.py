"""The traces of texts for which one is wanted: the last few, each as far as it is written. Used in the event loop only."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import cache
from typing import Final, final

from draftwood.core.settings import Method
from draftwood.engine import tracing
from draftwood.engine.decode import Decoder
from draftwood.engine.pipeline import PLAIN
from draftwood.runners.protocols import Runner
from draftwood.serve.errors import ApiError, bad
from draftwood.serve.prepare import Prepared
from draftwood.trace.files import from_json
from draftwood.trace.page.shell import asset
from draftwood.trace.record import Recorder
from draftwood.trace.records import Trace
from draftwood.trace.settings import TraceSettings

MAX_ROUNDS: Final = 200
"""Rounds of a trace that are kept, the first ones."""
GERMAN: Final = "german"
"""The id of the recorded translation that every server has."""
_UNFINISHED: Final = "The text was stopped, or it failed: what came after the last round was not recorded."


@final
class LiveTrace:
    """A trace that grows, or one that was recorded before.

    Attributes:
        recorder: makes it; None for one that grows no more.
        latest: the trace so far; it is replaced, never changed.
        ended: whether it grows no more.
        whole: whether it ended with its text.
    """

    def __init__(self, latest: Trace, recorder: Recorder | None = None) -> None:
        self.latest, self.recorder = latest, recorder
        self.ended = self.whole = recorder is None
        self._news = asyncio.Event()

    def update(self, trace: Trace, *, last: bool) -> None:
        """Take the trace after a further round."""
        self.latest, self.ended, self.whole = trace, last, last
        self._emit()

    def close(self) -> None:
        """The text has ended, or nobody writes it any more."""
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
        """The whole trace, when it has ended."""
        while not self.ended:
            await self.grown(self.latest)
        return self.latest


@cache
def german() -> Trace:
    """A German sentence that the bundled pair translates, recorded."""
    [trace] = from_json(json.loads(asset("draftwood.serve.page", "german.json")))
    return trace


@final
class Traces:
    """Makes recorders, and keeps traces by the ids of their responses.

    Args:
        drafting: the decoder of all texts.
        method: its method, without ``auto``.
        draft: its draft model, or None.
        most: the most traces that are kept; older ones are forgotten.
    """

    def __init__(self, drafting: Decoder, method: Method, draft: Runner | None, *, most: int) -> None:
        self._drafting = drafting
        self._method = method
        self._draft = draft
        self._most = most
        self._kept: dict[str, LiveTrace] = {}  # the oldest first

    def check(self) -> None:
        """Raise an ApiError if the server keeps no traces."""
        if not self._most:
            raise bad(
                "this server keeps no traces, so it has no page: leave trace out, or start it with --max-traces 16 and "
                "without replicas",
                param="trace",
            )

    def begin(self, prepared: Prepared) -> LiveTrace:
        """The trace of a request that wants one.

        Raises:
            ApiError: several texts, or a server that keeps no traces.
        """
        self.check()
        if (count := len(prepared.requests)) > 1:
            raise bad(f"trace is true, but {count} texts are wanted: send one prompt with n = 1", param="trace")
        method, draft = self._method, self._draft
        if prepared.method == PLAIN:
            method, draft = replace(method, method="ar", shape=None, nodes=None), None
        kept = TraceSettings(rounds=MAX_ROUNDS)
        recorder = tracing.recorder(
            self._drafting, prepared.requests, prepared.sampling, method=method, draft=draft, kept=kept
        )
        [trace] = recorder.traces()
        return LiveTrace(trace, recorder)

    def keep(self, name: str, trace: LiveTrace) -> None:
        """Keep a trace; the oldest one goes."""
        self._kept[name] = trace
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def of(self, name: str) -> LiveTrace:
        """The trace of a response.

        Raises:
            ApiError: it has none, or it is forgotten.
        """
        if name == GERMAN:
            return LiveTrace(german())
        if (found := self._kept.get(name)) is None:
            raise ApiError(
                404,
                f"there is no trace of this id: send trace = true with a request; the last {self._most} are kept",
                param="id",
                code="trace_not_found",
            )
        return found
