"""The page, and the traces of texts: the last few, whole, as events while they grow, and drawn; kept in the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Final, final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from draftwood.core.checks import short_repr
from draftwood.serve.http.errors import ApiError, bad
from draftwood.serve.http.settings import KEEP_ALIVE_SECONDS
from draftwood.serve.openai.answers import Answer, LiveTrace, while_present
from draftwood.serve.openai.streams import DONE, EVENTS, KEEP_ALIVE, event, event_stream
from draftwood.serve.page import page
from draftwood.trace.figures import draw_race, draw_round, draw_specdec
from draftwood.trace.figures.race import is_translation
from draftwood.trace.files import from_json, to_json
from draftwood.trace.page.pieces import first_of, head_data, round_data, unstyled
from draftwood.trace.page.shell import asset
from draftwood.trace.page.write import LAYOUTS, RACES
from draftwood.trace.records import Trace
from draftwood.trace.text import describe_round

GERMAN: Final = "german"
"""The id of the recorded translation that every server has."""
_WIDEST: Final = 100_000


@cache
def german() -> Trace:
    """A German sentence that the bundled pair translates, recorded."""
    [trace] = from_json(json.loads(asset("draftwood.serve.page", "german.json")))
    return trace


@final
class Traces:
    """Keeps traces by the ids of their responses, and answers the routes of the page and of traces.

    Args:
        most: the most traces that are kept; older ones are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, LiveTrace] = {}  # the oldest first

    def check(self, answer: Answer) -> None:
        """Raise an ApiError for a request of several texts, or if the server keeps no traces."""
        if not self._most:
            raise bad(
                "this server keeps no traces, so it has no page: leave trace out, or start it with --max-traces 16 and "
                "without replicas",
                param="trace",
            )
        if (count := len(answer.jobs)) > 1:
            raise bad(f"trace is true, but {count} texts are wanted: send one prompt with n = 1", param="trace")

    def keep(self, name: str, trace: LiveTrace) -> None:
        """Keep a trace; the oldest one goes."""
        self._kept[name] = trace
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def of(self, name: str) -> LiveTrace:
        """The trace of a response; raises an ApiError if it has none, or if it is forgotten."""
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

    async def page(self, request: Request) -> Response:
        if not self._most:
            return PlainTextResponse("Draftwood is running. It keeps no traces, so it has no page: see --max-traces.\n")
        html, policy = page()
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(html, headers={**headers, "Cache-Control": "no-cache"})

    async def trace(self, request: Request) -> Response:
        found = self.of(request.path_params["id"])
        if EVENTS in request.headers.get("accept", ""):
            return event_stream(_events(found))
        trace = await while_present(request.receive, found.finished())
        return await asyncio.to_thread(lambda: JSONResponse(to_json([trace])))

    async def round(self, request: Request) -> Response:
        trace = self.of(request.path_params["id"]).latest
        number, width = _whole("round", request.path_params["round"]), _width(request, LAYOUTS)
        if number >= len(trace.rounds):
            raise ApiError(404, f"the trace has {len(trace.rounds)} rounds and no round {number}", param="round")
        draw = draw_specdec if is_translation(trace) else draw_round
        found = await asyncio.to_thread(
            lambda: {"svg": unstyled(draw(trace, number, width=width)), "text": describe_round(trace, number)}
        )
        return JSONResponse(found)

    async def race(self, request: Request) -> Response:
        fast = self.of(request.path_params["id"]).latest
        plain = self.of(request.query_params.get("plain", "")).latest
        width = _width(request, RACES)
        if plain.prompt != fast.prompt or not plain.rounds or not fast.rounds:
            raise bad("plain is the trace of another prompt, or has no rounds: send one of the same prompt", param="plain")
        return JSONResponse({"svg": await asyncio.to_thread(lambda: unstyled(draw_race(plain, fast, width=width)))})


def _width(request: Request, layouts: Mapping[int, int]) -> int:
    """The width of the layout that fits."""
    room = _whole("width", request.query_params.get("width", "0"))
    return layouts[max(least for least in layouts if least <= room)]


def _whole(name: str, given: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and int(given) <= _WIDEST):
        raise bad(f"{name} is {short_repr(given)}: give a whole number from 0 to {_WIDEST}", param=name)
    return int(given)


async def _events(live: LiveTrace) -> AsyncIterator[bytes]:
    """What the page shows: the text, its rounds, its end."""
    trace, sent = live.latest, 0
    yield event({"text": head_data(trace, plain=trace.draft is None and trace.method == "ar")})
    while True:
        trace, ended = live.latest, live.ended
        for made in trace.rounds[sent:]:
            yield event({"round": round_data(trace, made)})
        sent = len(trace.rounds)
        if ended:
            reason = trace.finish_reason if live.whole else None
            end = {"finish_reason": reason, "dropped": trace.dropped, "first": first_of(trace), "tokens": trace.tokens}
            yield event({"end": end}) + DONE
            return
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await live.grown(trace)
        except TimeoutError:
            yield KEEP_ALIVE
