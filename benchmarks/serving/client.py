"""A client that notes when what came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, TypeVar, final

import httpx2

from benchmarks.serving.servers import Server

T = TypeVar("T")
R = TypeVar("R")
COMPLETIONS: Final = "/v1/completions"
CHATS: Final = "/v1/chat/completions"
_DATA: Final = "data: "
_STATUSES: Final = ("completed", "incomplete")  # of Responses, at their ends


@final
@dataclass(kw_only=True)
class Answer:
    """What came for a request for one text.

    Attributes:
        status: of the response.
        text: of completions and chats, where it was sent.
        finish_reason: why the text ended, in the words of its interface.
        tokens: number of new tokens.
        prompt_tokens, cached_tokens: of the prompt; the last ones were copied from other texts.
        error: the message of an error, also of one inside a stream.
        sent, ended: on the clock of ``perf_counter``.
        chunks: when parts of the text came; none without a stream.
        silence: seconds of the longest gap before a line of the stream.
    """

    status: int = 0
    text: str = ""
    finish_reason: str | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None
    sent: float = 0.0
    ended: float = 0.0
    chunks: list[float] = field(default_factory=list)
    silence: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether the text came as a whole."""
        return self.status == 200 and self.error is None and self.finish_reason is not None

    def take(self, found: Mapping[str, Any]) -> None:
        """Add a response, or a chunk of one."""
        if (error := error_of(found)) is not None:
            self.error = error
        for choice in found.get("choices") or ():
            self.text += text_of(choice)
        self.finish_reason = _end_of(found) or self.finish_reason
        if "completion_tokens" in (usage := found.get("usage") or {}):
            self.tokens, self.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def text_of(choice: Mapping[str, Any]) -> str:
    """The text in a choice of a completion or of a chat, whole or a part of it."""
    said = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or said.get("content") or "")


def error_of(found: Mapping[str, Any]) -> str | None:
    """The message of an error in the shape of any interface; None for other responses and chunks."""
    error = found.get("error") or _part(found, "response").get("error")
    return None if error is None else str(error["message"] if isinstance(error, dict) else error)


def _end_of(found: Mapping[str, Any]) -> str | None:
    """Why a text ended, in the words of its interface; None while it goes on."""
    ends = [choice.get("finish_reason") for choice in found.get("choices") or ()]
    ends += [found.get("done_reason"), found.get("stop_reason"), _part(found, "delta").get("stop_reason")]
    ends += [status for one in (found, _part(found, "response")) if (status := one.get("status")) in _STATUSES]
    return next(filter(None, ends), None)


def _part(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside an event; empty where another interface has something else of this name."""
    part = found.get(name)
    return part if isinstance(part, dict) else {}


def client_of(server: Server, seconds: float = 120.0) -> httpx2.AsyncClient:
    """A client without a limit of connections; an answer may be silent for so many seconds."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx2.AsyncClient(base_url=server.url, timeout=seconds, limits=limits, trust_env=False)


async def answer(
    client: httpx2.AsyncClient, body: Mapping[str, Any], path: str = COMPLETIONS, *, found: Answer | None = None
) -> Answer:
    """The answer to a request for one text, in a stream or not as its body says; only OpenAI's has ``text``.

    It is written into ``found`` as it comes.
    """
    found = found or Answer(sent=perf_counter())
    async with client.stream("POST", path, json=body) as response:
        found.status = response.status_code
        if body.get("stream") and found.status == 200:
            async for chunk in chunks(response, found):
                if any(map(text_of, chunk.get("choices") or ())):
                    found.chunks.append(perf_counter())
                found.take(chunk)
        else:
            await response.aread()
            found.take(_json(response))
    found.ended = perf_counter()
    if found.status != 200 and found.error is None:
        found.error = response.text[:200]
    return found


def _json(response: httpx2.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def chunks(response: httpx2.Response, found: Answer | None = None) -> Any:
    """The chunks of a stream, as they come: server-sent events, or lines of JSON. Any line ends a silence."""
    found = found or Answer(sent=perf_counter())
    last = found.sent
    async for line in response.aiter_lines():
        now = perf_counter()
        found.silence, last = max(found.silence, now - last), now
        if (data := line.removeprefix(_DATA)).startswith("{"):
            yield json.loads(data)


async def closed_loop(work: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T], clients: int) -> list[R]:
    """Do all work; each client takes the next item when it has finished one. Results keep the order of the items."""
    waiting, found = enumerate(items), dict[int, R]()

    async def one() -> None:
        for number, item in waiting:
            found[number] = await work(item)

    await _all([asyncio.create_task(one()) for _ in range(clients)])
    return [found[number] for number in range(len(found))]


async def _all(tasks: Sequence[asyncio.Task[R]]) -> list[R]:
    """All results; the first error ends the other tasks."""
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
