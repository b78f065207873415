"""Speed of the server: tokens per second and latencies by concurrency and by rate of arrivals, systems interleaved."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import quantiles
from time import perf_counter
from typing import Any, Final

from benchmarks.report import spread_cell, table
from benchmarks.serving.bodies import mixed
from benchmarks.serving.client import Answer, answer, client_of, closed_loop, open_loop
from benchmarks.serving.config import LoadConfig, Served
from benchmarks.serving.outcome import document, report
from benchmarks.serving.servers import Server, serving, transformers_serving
from draftwood.core.errors import ConfigError
from draftwood.hardware.machine import load_average
from draftwood.tune.compare import spread

WARM_UP: Final = 6  # requests
SECONDS: Final = 600.0  # that an answer may be silent
LATENCIES: Final = {"first_token": "first token", "between_tokens": "between tokens", "whole": "whole answer"}
NOTES: Final = """\
* **off**, **automatic** and **fixed** are this server: without drafts (`speculative: false`), with its own drafting, and
  with a method of fixed shape. **transformers** is `transformers serve` with the same target, which writes one text at a
  time. **transformers-batched** has continuous batching.
* In a repeat all systems get the same requests at one level before the next level, in a new order. Prompts, lengths and
  temperatures are mixed. No text ends early, so all systems write the same number of tokens.
* **Clients** have one request each at any time. **Arrivals** are random with a mean rate (Poisson), whatever the server
  does.
* **Tokens/s** are all new tokens by the time from the first request to the last answer. **First token** runs from the
  request. **Between tokens** is the time after the first chunk by the number of tokens after the first one. Milliseconds,
  p50 and p95 over the requests of a repeat; medians over repeats with their extremes.
* Client and servers share the machine. Servers without a request are idle."""


@contextmanager
def started(served: Served, config: LoadConfig) -> Iterator[tuple[dict[str, Server], dict[str, str]]]:
    """The servers of all systems, and why systems are left out.

    Raises:
        ConfigError: no system can be started.
    """
    servers, skipped = dict[str, Server](), dict[str, str]()
    with ExitStack() as stack:
        own: Server | None = None
        for name in config.names():
            try:
                if name in ("off", "automatic"):
                    own = own or stack.enter_context(serving(served, "--no-prefix-cache"))
                    servers[name] = own
                elif served.url is not None:
                    skipped[name] = "a running server was given"
                elif name == "fixed":
                    servers[name] = stack.enter_context(serving(served, "--no-prefix-cache", method=config.fixed))
                else:
                    more = ["--continuous-batching"] if name == "transformers-batched" else []
                    servers[name] = stack.enter_context(transformers_serving(served, *more))
            except ConfigError as error:
                skipped[name] = str(error)
        if not servers:
            raise ConfigError("nothing could be started: " + "; ".join(f"{name}: {why}" for name, why in skipped.items()))
        yield servers, skipped


def body_for(name: str, server: Server, body: Mapping[str, Any]) -> dict[str, Any]:
    """A request in the words of a system; it streams, and writes exactly the wanted number of tokens."""
    found = {**body, "model": server.model, "stream": True}
    if name.startswith("transformers"):
        length, temperature = found.pop("max_tokens"), found.pop("temperature")
        sampling = {"do_sample": temperature > 0} | ({"temperature": temperature, "top_k": 0} if temperature else {})
        settings = {"max_new_tokens": length, "min_new_tokens": length, "eos_token_id": None, "pad_token_id": 0, **sampling}
        return found | {"generation_config": json.dumps(settings)}
    found |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
    return found | ({"speculative": False} if name == "off" else {})


async def level(
    server: Server, system: str, bodies: Sequence[Mapping[str, Any]], clients: int | None, gaps: Sequence[float]
) -> dict[str, Any]:
    """The figures of one system under one load.

    Args:
        clients: their number; None for arrivals at random.
        gaps: seconds between arrivals.
    """
    async with client_of(server, SECONDS) as client:

        async def one(body: Mapping[str, Any]) -> Answer:
            return await answer(client, body_for(system, server, body))

        begun = perf_counter()
        answers = await (open_loop(one, bodies, gaps) if clients is None else closed_loop(one, bodies, clients))
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


async def measure(
    servers: Mapping[str, Server], config: LoadConfig, seed: int, on_step: Callable[[], object]
) -> list[dict[str, Any]]:
    """All systems under every load; ``on_step`` is called after each one."""
    levels = [("clients", float(n)) for n in config.levels()] + [("arrivals", rate) for rate in config.arrivals()]
    found: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    heat = config.heat()
    for repeat in range(-1, config.repeats):  # the first one warms up
        for kind, size in levels if repeat >= 0 else levels[:1]:
            rng = random.Random(f"load/{seed}/{repeat}/{kind}/{size}")
            first = 10_000 * (repeat + 1) + 100 * int(size)
            count = config.requests if repeat >= 0 else WARM_UP
            bodies = [mixed(first + i, seed, "", config.max_new_tokens, heat) for i in range(count)]
            gaps = [rng.expovariate(size) for _ in bodies]
            for name in rng.sample(sorted(servers), len(servers)):
                got = await level(servers[name], name, bodies, int(size) if kind == "clients" else None, gaps)
                if repeat >= 0:
                    found.setdefault((kind, size, name), []).append(got)
                    on_step()
    return [
        {"load": kind, "size": size, "system": name, "repeats": runs, **_medians(runs)}
        for (kind, size, name), runs in found.items()
    ]


def _medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"tokens_per_second": spread([run["tokens_per_second"] for run in runs])}
    for name in LATENCIES:
        for part in ("p50", "p95"):
            values = [run[name][part] for run in runs if run[name][part] is not None]
            out[f"{name}_{part}"] = spread(values) if values else None
    return out | {part: sum(run[part] for run in runs) for part in ("answers", "refused", "other")}


def steps_of(config: LoadConfig) -> int:
    """The most steps of :func:`measure`."""
    return config.repeats * len(config.names()) * (len(config.levels()) + len(config.arrivals()))


def run(served: Served, config: LoadConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what :func:`started` raises."""
    before = load_average()
    with started(served, config) as (servers, skipped):
        results = asyncio.run(measure(servers, config, served.seed, on_step))
    order = {name: place for place, name in enumerate(config.names())}
    results.sort(key=lambda result: (result["load"] == "arrivals", result["size"], order[result["system"]]))
    left_out = [{"system": name, "why": why} for name, why in skipped.items()]
    return document("serve-load", served, config, before, [], {"skipped": left_out, "results": results})


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    blocks = [f"**Left out**: {one['system']}, {one['why']}" for one in found["skipped"]]
    for kind, title in (("clients", "Clients that always have a request"), ("arrivals", "Arrivals at random, per second")):
        rows = [_row(result) for result in found["results"] if result["load"] == kind]
        names = [f"{text}, {part}" for text in LATENCIES.values() for part in ("p50", "p95")]
        if rows:
            blocks += [f"## {title}", table([f"{kind}, system", "tokens/s", *names, "answers", "refused", "other"], rows)]
    return report("The server under load", found, *blocks, "## How to read this", NOTES)


def _row(result: Mapping[str, Any]) -> list[str]:
    cells = [result[f"{name}_{part}"] for name in LATENCIES for part in ("p50", "p95")]
    shown = ["-" if cell is None else spread_cell(cell, 1) for cell in cells]
    counts = [str(result[part]) for part in ("answers", "refused", "other")]
    return [f"{result['size']:g}, {result['system']}", spread_cell(result["tokens_per_second"], 0), *shown, *counts]
