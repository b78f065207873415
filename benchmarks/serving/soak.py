"""Many short requests, a part of which the client leaves. Every one is accounted for, and memory stays flat."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import httpx2

from benchmarks.report import table
from benchmarks.serving.bodies import mixed
from benchmarks.serving.client import answer, client_of, closed_loop
from benchmarks.serving.config import Served, SoakConfig
from benchmarks.serving.metrics import Counts, counts, idle
from benchmarks.serving.outcome import Check, document, report
from benchmarks.serving.routes import PLAIN, ROUTES, chatting
from benchmarks.serving.servers import Server, serving
from draftwood.hardware.machine import load_average
from draftwood.tune.prompts import built_in

TENTHS: Final = 10
WARM_UP: Final = 3  # requests of every client
LONGEST: Final = 8  # tokens
LEFT_LONGEST: Final = 48  # tokens of a text that the client leaves
_DELAY: Final = 0.15  # seconds, the longest before a client leaves a whole response
_CHUNK: Final = 4096  # bytes
_MEMORY: Final = 0.0625  # GiB of keys and values: the prefix cache is full before memory is compared
_SETTLE: Final = 2.0  # seconds without a text before memory is read; a server gives freed memory back after one

Fate: TypeAlias = Literal["complete", "left_stream", "left_whole", "cut", "refused", "failed"]
"""What became of a request: its text came, the client left it during the stream, before the response, or inside the body;
or the server refused it (429), or failed."""


PLANS: Final[tuple[Fate, ...]] = ("complete", "left_stream", "left_whole", "cut")


def request_of(number: int, seed: int, server: Server) -> tuple[Fate, str, dict[str, Any]]:
    """What the client means to do with a request, its path and its body."""
    rng = random.Random(f"soak/{seed}/{number}")
    [plan] = rng.choices(PLANS, [0.7, 0.12, 0.12, 0.06])
    body = mixed(number, seed, server.model, LONGEST if plan == "complete" else LEFT_LONGEST)
    stream = plan == "left_stream" or (plan == "complete" and rng.random() < 0.5)
    route = rng.choice(ROUTES if server.chats else PLAIN)
    body |= {"stream": stream, "speculative": rng.random() < 0.7, "ignore_eos": plan != "complete"}
    return plan, route.path, route.translated(body)


async def fate(server: Server, client: httpx2.AsyncClient, number: int, seed: int) -> Fate:
    """Send one request; what became of it."""
    plan, path, body = request_of(number, seed, server)
    if plan != "complete":
        sent = raw(urlsplit(server.url).netloc, path, body)
        return await _left(server, plan, sent, random.Random(f"leave/{seed}/{number}"))
    try:
        found = await answer(client, body, path)
    except httpx2.HTTPError:
        return "failed"
    return "complete" if found.complete else "refused" if found.status == 429 else "failed"


async def _left(server: Server, plan: Fate, sent: bytes, rng: random.Random) -> Fate:
    """Send a request through a connection of its own, and close it early."""
    where = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(sent[: -rng.randrange(1, 40)] if plan == "cut" else sent)
        await writer.drain()
        if plan != "left_stream":
            await asyncio.sleep(rng.random() * _DELAY)
            return plan
        async with asyncio.timeout(60):
            first = await reader.read(_CHUNK)
            for _ in range(rng.randrange(3)):
                await reader.read(_CHUNK)
        if first.startswith(b"HTTP/1.1 200"):
            return plan
        return "refused" if first.startswith(b"HTTP/1.1 429") else "failed"
    except (OSError, TimeoutError):
        return "failed"
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        writer.close()


def raw(host: str, path: str, body: dict[str, Any]) -> bytes:
    """A request as it goes over the wire."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


async def warm_up(server: Server, client: httpx2.AsyncClient, clients: int, seed: int) -> None:
    """The largest batches that the requests can make: what the server keeps for them is there before memory is compared."""
    prompts = built_in(12)
    bodies = [
        mixed(number, seed, server.model, LEFT_LONGEST)
        | {"prompt": " ".join(prompts[number % 9 :][:4]), "max_tokens": LEFT_LONGEST, "ignore_eos": True}
        | {"speculative": number % 4 > 0}
        for number in range(WARM_UP * clients)
    ]
    route = ROUTES[-1] if server.chats else PLAIN[0]
    await closed_loop(lambda body: answer(client, route.translated(body), route.path), bodies, clients)


async def soak(server: Server, config: SoakConfig, seed: int, on_step: Callable[[], object]) -> dict[str, Any]:
    """Send all requests in ten parts, and look at the server after each one; ``on_step`` is called then.

    Returns:
        Requests by their fate, the server's counts, and after each part the memory in bytes and texts that were left.
    """
    fates: Counter[str] = Counter()
    memory, left = [], []
    async with client_of(server) as client:
        await warm_up(server, client, config.clients, seed)
        before = await idle(client)
        for part in range(TENTHS):
            numbers = range(part * config.requests // TENTHS, (part + 1) * config.requests // TENTHS)
            fates.update(await closed_loop(lambda number: fate(server, client, number, seed), numbers, config.clients))
            await answer(client, mixed(0, seed, server.model, LONGEST))  # a server keeps what it read of its last text
            now = await idle(client)
            if server.process is not None:
                await asyncio.sleep(_SETTLE)
            left.append(now.running + now.waiting)
            memory.append(server.memory())
            on_step()
        added = await counts(client) - before
        added = replace(added, ended=added.ended - TENTHS)  # without the last text of each part
    return {"fates": dict(fates), "server": asdict(added), "memory": memory, "left": left}


def checks(found: dict[str, Any], config: SoakConfig) -> list[Check]:
    """What the client saw against what the server counted."""
    fates, server = Counter(found["fates"]), Counts(**found["server"])
    unread = fates["complete"] + fates["left_stream"] + fates["left_whole"] - server.taken
    first, last = found["memory"][0], found["memory"][-1]
    accounts = [
        Check(what="every request has one fate", found=f"{fates.total()} of {config.requests}",
              holds=fates.total() == config.requests),
        Check(what="nothing failed, at the client and at the server",
              found=f"{fates['failed']}, {server.failed}, {server.failed_rounds} rounds",
              holds=not (fates["failed"] or server.failed or server.failed_rounds)),
        Check(what="texts that came whole ended at the server too; others may have ended before their client was missed",
              found=f"{fates['complete']} came, {server.ended} ended",
              holds=0 <= server.ended - fates["complete"] <= fates["left_stream"] + fates["left_whole"]),
        Check(what="the server counts every text whose request it had read as ended or cancelled",
              found=f"{server.ended} + {server.cancelled}; {unread} requests were left before they were read",
              holds=0 <= unread <= fates["left_whole"]),
        Check(what="no text is left after any tenth", found=str(sum(found["left"])), holds=not any(found["left"])),
    ]  # fmt: skip
    if first and last:
        grown = last / first - 1
        accounts.append(
            Check(what=f"memory after the last tenth is at most {config.growth:.0%} above that after the first",
                  found=f"{first / 1e6:.1f} MB, {last / 1e6:.1f} MB: {grown:+.2%}", holds=grown <= config.growth)
        )  # fmt: skip
    return accounts


def run(served: Served, config: SoakConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what :func:`serving` raises."""
    before = load_average()
    with chatting(served) as models, serving(models, "--max-memory", str(_MEMORY)) as server:
        found = asyncio.run(soak(server, config, served.seed, on_step))
    return document("serve-soak", served, config, before, checks(found, config), found)


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    fates = table(["what became of a request", "requests"], [[name, str(n)] for name, n in sorted(found["fates"].items())])
    memory = ", ".join("-" if m is None else f"{m / 1e6:.1f}" for m in found["memory"])
    return report("Many short requests", found, fates, f"Resident memory in MB after each tenth: {memory}.")
