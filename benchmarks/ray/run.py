"""The parts in turn, and their report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from benchmarks.ray import faults, file, leaving
from benchmarks.ray.config import RayConfig
from benchmarks.report import spread_cell, table
from benchmarks.serving.config import LoadConfig, Served
from benchmarks.serving.load import LATENCIES, measure
from benchmarks.serving.outcome import Check, document, load, report
from benchmarks.serving.servers import serving

STEPS: Final = 2  # of a part
CHECKED: Final = {"faults": faults, "file": file, "leaving": leaving}


def run(served: Served, config: RayConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what its parts raise."""
    before, results, checks = load(), dict[str, Any](), list[Check]()
    for name in config.chosen():
        if name == "proxy":
            results[name] = _proxy(served, config, on_step)
            continue
        part: Any = CHECKED[name]
        found = part.measure(served, config, on_step)
        checks += part.checks(found, config)
        results[name] = {"errors": faults.errors(found)} if name == "faults" else found
    return document("ray", served, config, before, checks, results)


def _proxy(served: Served, config: RayConfig, on_step: Callable[[], object]) -> list[dict[str, Any]]:
    """One replica behind Ray's proxy, and ``draftwood serve``: the same requests in turn, one thread each."""
    levels = LoadConfig(concurrency="1,8", rates="", requests=config.requests, repeats=config.repeats,
                        max_new_tokens=config.max_new_tokens)  # fmt: skip
    more = ("--threads", "1", "--no-prefix-cache")
    with serving(served, *more) as alone, serving(served, *more, command=("ray", "serve")) as behind:
        found = asyncio.run(measure({"serve": alone, "ray serve": behind}, levels, served.seed, lambda: None))
    on_step()
    on_step()
    return found


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    blocks = []
    if lost := found.get("faults", {}).get("errors"):
        blocks.append(table(["lost answers", "number"], [[what, str(count)] for what, count in lost.items()]))
    if found.get("proxy"):
        names = [f"{text}, {part}" for text in LATENCIES.values() for part in ("p50", "p95")]
        blocks.append(table(["clients, server", "tokens/s", *names], [_row(one) for one in found["proxy"]]))
    return report("Several processes of Ray on one machine", found, *blocks)


def _row(result: dict[str, Any]) -> list[str]:
    cells = [result[f"{name}_{part}"] for name in LATENCIES for part in ("p50", "p95")]
    shown = ["-" if cell is None else spread_cell(cell, 1) for cell in cells]
    return [f"{result['size']:g}, {result['system']}", spread_cell(result["tokens_per_second"], 0), *shown]
