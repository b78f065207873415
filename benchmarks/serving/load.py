"""Speed of the server: tokens per second and latencies by concurrency, with drafts and without in turn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from time import perf_counter
from typing import Any, Final

from benchmarks.report import spread_cell, table
from benchmarks.serving.bodies import mixed
from benchmarks.serving.client import Answer, answer, client_of, closed_loop
from benchmarks.serving.config import LoadConfig, Served
from benchmarks.serving.outcome import document, report
from benchmarks.serving.servers import Server, serving
from benchmarks.summary import spread
from draftwood.hardware.machine import load_average

WARM_UP: Final = 6  # requests
SECONDS: Final = 600.0  # that an answer may be silent
LATENCIES: Final = {"first_token": "first token", "between_tokens": "between tokens", "whole": "whole answer"}
NOTES: Final = """\
* **off** is this server without drafts (`speculative: false`), **automatic** with its own drafting.
* In a repeat both get the same requests at one level before the next level, in a new order. Prompts, lengths and
  temperatures are mixed. No text ends early, so both write the same number of tokens.
* **Clients** have one request each at any time.
* **Tokens/s** are all new tokens by the time from the first request to the last answer. **First token** runs from the
  request. **Between tokens** is the time after the first chunk by the number of tokens after the first one. Milliseconds,
  p50 and p95 over the requests of a repeat; medians over repeats with their extremes.
* Client and server share the machine."""


def body_for(system: str, server: Server, body: Mapping[str, Any]) -> dict[str, Any]:
    """A request of a system; it streams, and writes exactly the wanted number of tokens."""
    found = {**body, "model": server.model, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    return found | ({"speculative": False} if system == "off" else {})


async def level(server: Server, system: str, bodies: Sequence[Mapping[str, Any]], clients: int) -> dict[str, Any]:
    """The figures of one system with so many clients."""
    async with client_of(server, SECONDS) as client:

        async def one(body: Mapping[str, Any]) -> Answer:
            return await answer(client, body_for(system, server, body))

        begun = perf_counter()
        answers = await closed_loop(one, bodies, clients)
        return figures(answers, perf_counter() - begun)


def figures(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """Tokens per second, and the latencies of the answers that came, in milliseconds."""
    good = [found for found in answers if found.complete and found.chunks]
    values: dict[str, list[float]] = {
        "first_token": [found.chunks[0] - found.sent for found in good],
        "between_tokens": [(f.chunks[-1] - f.chunks[0]) / (f.tokens - 1) for f in good if f.tokens > 1],
        "whole": [found.ended - found.sent for found in good],
    }
    tokens = sum(found.tokens for found in good)
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "answers": len(good),
        "refused": sum(found.status == 429 for found in answers),
        "other": len(answers) - len(good) - sum(found.status == 429 for found in answers),
        **{name: {"p50": _part(some, 50), "p95": _part(some, 95)} for name, some in values.items()},
    }


def _part(seconds: Sequence[float], percent: int) -> float | None:
    """A percentile in milliseconds; None without values."""
    if not seconds:
        return None
    return 1e3 * (quantiles(seconds, n=100, method="inclusive")[percent - 1] if len(seconds) > 1 else seconds[0])


async def measure(server: Server, config: LoadConfig, seed: int, on_step: Callable[[], object]) -> list[dict[str, Any]]:
    """Both systems with every number of clients; ``on_step`` is called after each one."""
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for repeat in range(-1, config.repeats):  # the first one warms up
        for clients in config.levels() if repeat >= 0 else config.levels()[:1]:
            first = 10_000 * (repeat + 1) + 100 * clients
            count = config.requests if repeat >= 0 else WARM_UP
            bodies = [mixed(first + i, seed, "", config.max_new_tokens, config.heat()) for i in range(count)]
            order = random.Random(f"load/{seed}/{repeat}/{clients}").sample(config.names(), len(config.names()))
            for name in order:
                got = await level(server, name, bodies, clients)
                if repeat >= 0:
                    found.setdefault((clients, name), []).append(got)
                    on_step()
    return [
        {"clients": clients, "system": name, "repeats": runs, **_medians(runs)}
        for (clients, name), runs in sorted(found.items())
    ]


def _medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"tokens_per_second": spread([run["tokens_per_second"] for run in runs])}
    for name in LATENCIES:
        for part in ("p50", "p95"):
            values = [run[name][part] for run in runs if run[name][part] is not None]
            out[f"{name}_{part}"] = spread(values) if values else None
    return out | {part: sum(run[part] for run in runs) for part in ("answers", "refused", "other")}


def steps_of(config: LoadConfig) -> int:
    """The steps of :func:`measure`."""
    return config.repeats * len(config.names()) * len(config.levels())


def run(served: Served, config: LoadConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what :func:`serving` raises."""
    before = load_average()
    with serving(served, "--no-prefix-cache") as server:
        results = asyncio.run(measure(server, config, served.seed, on_step))
    return document("serve-load", served, config, before, [], {"results": results})


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    names = [f"{text}, {part}" for text in LATENCIES.values() for part in ("p50", "p95")]
    header = ["clients, system", "tokens/s", *names, "answers", "refused", "other"]
    rows = table(header, [_row(result) for result in found["results"]])
    return report("The server under load", found, rows, "## How to read this", NOTES)


def _row(result: Mapping[str, Any]) -> list[str]:
    cells = [result[f"{name}_{part}"] for name in LATENCIES for part in ("p50", "p95")]
    shown = ["-" if cell is None else spread_cell(cell, 1) for cell in cells]
    counts = [str(result[part]) for part in ("answers", "refused", "other")]
    return [f"{result['clients']}, {result['system']}", spread_cell(result["tokens_per_second"], 0), *shown, *counts]
