"""The page, and the traces of texts: whole, as events while they grow, and drawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from draftwood.core.checks import short_repr
from draftwood.serve.answers import while_present
from draftwood.serve.errors import ApiError, bad
from draftwood.serve.page import page
from draftwood.serve.settings import KEEP_ALIVE_SECONDS
from draftwood.serve.streams import DONE, KEEP_ALIVE, event, event_stream
from draftwood.serve.traces import LiveTrace, Traces
from draftwood.trace.figures import draw_race, draw_round, draw_specdec
from draftwood.trace.figures.write import is_translation
from draftwood.trace.files import to_json
from draftwood.trace.labels import title_of
from draftwood.trace.page.pieces import first_of, round_data, shown, unstyled
from draftwood.trace.page.write import LAYOUTS, RACES
from draftwood.trace.records import Trace
from draftwood.trace.text import describe_round

_WIDEST: Final = 100_000


@final
class TraceRoutes:
    """The handlers of the page and of traces."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    async def page(self, request: Request) -> Response:
        self._traces.check()
        html, policy = page()
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(html, headers={**headers, "Cache-Control": "no-cache"})

    async def trace(self, request: Request) -> Response:
        found = self._traces.of(request.path_params["id"])
        if "text/event-stream" in request.headers.get("accept", ""):
            return event_stream(_events(found))
        trace = await while_present(request.receive, found.finished())
        return await asyncio.to_thread(lambda: JSONResponse(to_json([trace])))

    async def round(self, request: Request) -> Response:
        trace = self._traces.of(request.path_params["id"]).latest
        number, width = _whole("round", request.path_params["round"]), _width(request, LAYOUTS)
        if number >= len(trace.rounds):
            raise ApiError(404, f"the trace has {len(trace.rounds)} rounds and no round {number}", param="round")
        draw = draw_specdec if is_translation(trace) else draw_round
        return await _drawn(
            lambda: {"svg": unstyled(draw(trace, number, width=width)), "text": describe_round(trace, number)}
        )

    async def race(self, request: Request) -> Response:
        fast = self._traces.of(request.path_params["id"]).latest
        plain = self._traces.of(request.query_params.get("plain", "")).latest
        width = _width(request, RACES)
        if plain.prompt != fast.prompt or not plain.rounds or not fast.rounds:
            raise bad("plain is the trace of another prompt, or has no rounds: send one of the same prompt", param="plain")
        return await _drawn(lambda: {"svg": unstyled(draw_race(plain, fast, width=width))})


async def _drawn(draw: Callable[[], Mapping[str, str]]) -> Response:
    return JSONResponse(await asyncio.to_thread(draw))


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
    yield event({"text": _text(live.latest)})
    sent = 0
    while True:
        trace, ended = live.latest, live.ended
        for made in trace.rounds[sent:]:
            yield event({"round": round_data(trace, made)})
        sent = len(trace.rounds)
        if ended:
            yield event({"end": _end(trace, whole=live.whole)})
            yield DONE
            return
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await live.grown(trace)
        except TimeoutError:
            yield KEEP_ALIVE


def _text(trace: Trace) -> dict[str, Any]:
    plain = trace.draft is None and trace.method == "ar"
    return {
        "title": "plain decoding" if plain else title_of(trace), "plain": plain, "translation": is_translation(trace),
        "prompt": shown(trace.prompt_text), "source": shown(trace.source_text),
    }  # fmt: skip


def _end(trace: Trace, *, whole: bool) -> dict[str, Any]:
    return {
        "finish_reason": trace.finish_reason if whole else None, "dropped": trace.dropped, "first": first_of(trace),
        "tokens": trace.tokens,
    }  # fmt: skip
