"""Clients that leave replicas while others stay."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import httpx2

from benchmarks.ray.config import RayConfig
from benchmarks.ray.faults import answered
from benchmarks.serving.bodies import mixed
from benchmarks.serving.client import client_of
from benchmarks.serving.config import Served
from benchmarks.serving.metrics import IDLE_SECONDS, parsed
from benchmarks.serving.outcome import Check
from benchmarks.serving.servers import Server, serving

_SCRAPES = 12  # that reach both replicas, almost surely
_LONG = 400  # tokens of a text that its client leaves
_LONGEST_STAY = 3.0  # seconds


def measure(served: Served, config: RayConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """How the clients that stayed ended, and what was left on the replicas."""
    more = ["--replicas", "2", "--threads", "1", "--max-queue", str(config.clients)]
    with serving(served, *more, command=("ray", "serve")) as server:
        found = asyncio.run(_run(server, config, served.seed))
    on_step()
    on_step()
    return found


async def _run(server: Server, config: RayConfig, seed: int) -> dict[str, Any]:
    async with client_of(server, 5 * config.seconds) as client:

        async def one(number: int) -> bool | None:
            body = mixed(number, seed, server.model, config.max_new_tokens) | {"stream": True, "ignore_eos": True}
            if number % 2:
                return (await answered(client, body)).complete
            try:
                async with asyncio.timeout(_LONGEST_STAY * random.Random(number).random()):
                    await answered(client, body | {"max_tokens": _LONG})
            except TimeoutError:
                return None
            return True

        ends = await asyncio.gather(*map(one, range(config.clients)))
        busy = await load_of(client)
        end = monotonic() + IDLE_SECONDS
        while any(busy.values()) and monotonic() < end:
            busy = await load_of(client)
        return {"left": ends.count(None), "whole": ends[1::2].count(True), "stayed": len(ends[1::2]), "busy": busy}


async def load_of(client: httpx2.AsyncClient) -> dict[str, int]:
    """Replica -> texts that it writes or keeps waiting."""
    found = {}
    for _ in range(_SCRAPES):
        text = (await client.get("/metrics")).text
        if (name := re.search(r'replica="([^"]+)"', text)) is not None:
            now = parsed(text)
            found[name[1]] = now.running + now.waiting
    return found


def checks(found: Mapping[str, Any], config: RayConfig) -> list[Check]:
    """Who left, who stayed, and what is left."""
    return [
        Check(what="clients left", found=f"{found['left']} of {config.clients}", holds=found["left"] > 0),
        Check(what="those that stayed got whole texts", found=f"{found['whole']} of {found['stayed']}",
              holds=found["whole"] == found["stayed"]),
        Check(what="running and waiting are 0 on each of two replicas", found=str(sorted(found["busy"].values())),
              holds=len(found["busy"]) == 2 and not any(found["busy"].values())),
    ]  # fmt: skip
