"""Texts of two replicas, while one raylet is removed and the process of the other replica is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any, Final

import httpx2

from benchmarks.ray.cluster import REPLICA, raylets, replicas, workers
from benchmarks.ray.config import RayConfig
from benchmarks.serving.bodies import mixed
from benchmarks.serving.client import Answer, answer, client_of, closed_loop
from benchmarks.serving.config import Served
from benchmarks.serving.outcome import Check
from benchmarks.serving.servers import Server, serving

CLIENTS: Final = 8
LOST: Final = "lost"
_TRIES: Final = 10
_PAUSE: Final = 2.0  # seconds before a text is wanted again


def bodies(model: str, config: RayConfig, seed: int) -> list[dict[str, Any]]:
    """The requests; every second one is a stream."""
    return [
        mixed(number, seed, model, config.max_new_tokens) | {"ignore_eos": True, "stream": number % 2 == 0}
        for number in range(config.texts)
    ]


async def answered(client: httpx2.AsyncClient, body: Mapping[str, Any]) -> Answer:
    """What came, also where the connection broke."""
    found = Answer(sent=perf_counter())
    try:
        return await answer(client, body, found=found)
    except httpx2.HTTPError as error:
        found.error, found.ended = type(error).__name__, perf_counter()
        return found


def measure(served: Served, config: RayConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The answers of one process, of the replicas, and of those that were lost, wanted again."""
    with serving(served, "--threads", "1") as alone:
        wanted = asyncio.run(_alone(alone, config, served.seed))
    on_step()
    with raylets() as cluster, replicas(cluster, served, 2) as server:
        found, again = asyncio.run(_with_faults(server, cluster, config, served.seed))
    on_step()
    return {
        "wanted": [one.text for one in wanted],
        "found": [asdict(one) for one in found],
        "again": {str(number): one.text for number, one in again.items()},
    }


async def _alone(server: Server, config: RayConfig, seed: int) -> list[Answer]:
    async with client_of(server, config.seconds) as client:
        return await closed_loop(lambda body: answered(client, body), bodies(server.model, config, seed), CLIENTS)


async def _with_faults(server: Server, cluster: Any, config: RayConfig, seed: int) -> tuple[list[Answer], dict[int, Answer]]:
    """A raylet is removed after a fifth of the texts, and the process of the replica that is left killed after a half."""
    done, faults = 0, {config.texts // 5: _remove(cluster), config.texts // 2: _kill}
    async with client_of(server, config.seconds) as client:

        async def one(body: Mapping[str, Any]) -> Answer:
            nonlocal done
            found = await answered(client, body)
            done += 1
            if (fault := faults.get(done)) is not None:
                await asyncio.to_thread(fault)
            return found

        sent = bodies(server.model, config, seed)
        found = await closed_loop(one, sent, CLIENTS)
        lost = [number for number, one in enumerate(found) if not one.complete]
        again = await closed_loop(lambda number: _again(client, sent[number]), lost, CLIENTS)
        return found, dict(zip(lost, again, strict=True))


def _remove(cluster: Any) -> Callable[[], object]:
    return lambda: cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)


def _kill() -> None:
    if not (found := workers(REPLICA)):
        raise RuntimeError("there is no replica to kill")
    for pid in found:
        os.kill(pid, signal.SIGKILL)


async def _again(client: httpx2.AsyncClient, body: Mapping[str, Any]) -> Answer:
    for _ in range(_TRIES):
        if (found := await answered(client, body)).complete:
            break
        await asyncio.sleep(_PAUSE)
    return found


def checks(found: Mapping[str, Any], config: RayConfig) -> list[Check]:
    """What came against the texts of a single process."""
    wanted: Sequence[str] = found["wanted"]
    answers = [Answer(**one) for one in found["found"]]
    ended = [(a.text, text) for a, text in zip(answers, wanted, strict=True) if a.complete]
    lost = [(number, a) for number, a in enumerate(answers) if not a.complete]
    silent = sum(a.error is None for _, a in lost)
    hung = sum("Timeout" in (a.error or "") for _, a in lost)
    begun = sum(wanted[number].startswith(a.text) for number, a in lost)
    same = sum(found["again"][str(number)] == wanted[number] for number, _ in lost)
    right = sum(text == other for text, other in ended)
    return [
        Check(what="texts that came whole are those of one process", found=f"{right} of {len(ended)}",
              holds=0 < right == len(ended)),
        Check(what="something was lost, and each lost answer has an error", found=f"{len(lost)}, {silent} in silence",
              holds=bool(lost) and not silent),
        Check(what="nothing hangs", found=f"{hung} without a byte for {config.seconds:g} seconds", holds=not hung),
        Check(what="what came of lost answers is the beginning of the text", found=f"{begun} of {len(lost)}",
              holds=begun == len(lost)),
        Check(what="sent again, lost answers are those of one process", found=f"{same} of {len(lost)}",
              holds=same == len(lost)),
    ]  # fmt: skip


def errors(found: Mapping[str, Any]) -> dict[str, int]:
    """Lost answers by what the client saw."""
    answers = [Answer(**one) for one in found["found"]]
    return dict(Counter(f"status {a.status}, {(a.error or '')[:60]}" for a in answers if not a.complete))
