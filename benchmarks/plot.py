"""Plots, each a function of the JSON documents of ``python -m benchmarks`` (``generate`` and ``cost``) alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.cost import limit, name_of
from benchmarks.report import Result, best, efficiency_of, speed_of
from benchmarks.settings import OURS, rank
from draftwood.core.errors import ConfigError

EXTRA: Final = 'pip install "draftwood[plots]"'
Document: TypeAlias = dict[str, Any]
_MOST = 10  # lines of one plot, as many as there are colours


def read(paths: Sequence[Path]) -> list[Document]:
    """The documents.

    Raises:
        ConfigError: a file that is none.
    """
    found = []
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as JSON ({error}): give bench.json or cost.json") from error
        if not isinstance(document, dict) or not (
            {"results", "models"} <= document.keys() or document.get("kind") == "cost"
        ):
            raise ConfigError(f"{path} is no result of 'generate' or 'cost': give bench.json or cost.json")
        found.append(document)
    return found


def draw(documents: Sequence[Document], folder: Path, form: str) -> Iterator[Path]:
    """Write what can be drawn of the documents; tells each file.

    * ``speed-tT``: tokens per second against the target's size, the fastest setting of each method, at temperature T: median
      and extremes of repeats;
    * ``efficiency-tT-N``: block efficiency against drafted nodes, the best shape of each method, of the Nth run;
    * ``speed-tT-batchB``, ``efficiency-tT-batchB-N``: the same of batches of B texts;
    * ``cost-N``: a forward's time against its tokens, and the memory's limit.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"plots need the package matplotlib ({error}); install it with: {EXTRA}") from error
    folder.mkdir(parents=True, exist_ok=True)

    def save(name: str, fill: Any, *given: Any) -> Iterator[Path]:
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        if fill(axes, *given):
            path = folder / f"{name}.{form}"
            figure.savefig(path, dpi=150)
            yield path

    runs = [document for document in documents if "results" in document]
    for temperature, size in sorted({(r["temperature"], _batch(r)) for run in runs for r in run["results"]}):
        part = f"t{temperature:g}" + ("" if size == 1 else f"-batch{size}")
        yield from save(f"speed-{part}", speed, runs, temperature, size)
        for number, run in enumerate(runs, start=1):
            yield from save(f"efficiency-{part}-{number}", efficiency, run, temperature, size)
    for number, document in enumerate((d for d in documents if d.get("kind") == "cost"), start=1):
        yield from save(f"cost-{number}", cost, document)


def _batch(result: Result) -> int:
    return int(result.get("batch", 1))


def _conditions(temperature: float, batch: int) -> str:
    return f"temperature {temperature:g}" + ("" if batch == 1 else f", batch {batch}")


def _size(run: Document) -> float:
    return float(run["models"]["target"]["parameters"])


def _backend(run: Document) -> str:
    return str(run["config"].get("backend", "torch"))  # documents from before there was another one do not say


def _inflated(run: Document) -> str:
    return " (cost-inflated)" if run["models"]["target"].get("label") else ""


def _lines(points: dict[str, list[tuple[float, float, float, float]]], axes: Any) -> bool:
    """One line per method with its extremes; False where there is nothing."""
    for number, method in enumerate(sorted(points, key=rank)):
        x, y, low, high = zip(*sorted(points[method]), strict=True)
        spread = [[a - b for a, b in zip(y, low, strict=True)], [b - a for a, b in zip(y, high, strict=True)]]
        style = "-" if number < _MOST else "--" if number < 2 * _MOST else ":"
        axes.errorbar(x, y, yerr=spread, marker="o", markersize=4, capsize=2, linestyle=style, label=method)
    axes.grid(alpha=0.3)
    if points:
        axes.figure.legend(fontsize="small", loc="outside right upper")
    return bool(points)


def speed(axes: Any, runs: Sequence[Document], temperature: float, batch: int = 1) -> bool:
    """Tokens per second against the target's parameters."""
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    several = len(set(map(_backend, runs))) > 1
    for run in runs:
        here = [r for r in run["results"] if (r["temperature"], _batch(r)) == (temperature, batch)]
        for method, result in best(here, speed_of).items():
            speed = result["tokens_per_second"]
            if several and method in OURS:  # a line is of what one backend runs; a run of both has marked its methods
                method = f"{method} ({_backend(run)})"
            points.setdefault(method, []).append((_size(run) / 1e6, speed["median"], speed["min"], speed["max"]))
    marked = "; larger ones cost-inflated" if any(map(_inflated, runs)) else ""
    axes.set(xscale="log", yscale="log", xlabel=f"target, millions of parameters{marked}", ylabel="tokens per second")
    for axis, sizes in ((axes.xaxis, sorted({_size(run) / 1e6 for run in runs})), (axes.yaxis, None)):
        axis.set_major_formatter("{x:.3g}")
        axis.set_minor_formatter("{x:.3g}" if sizes is None else "")
        if sizes is not None:
            axis.set_ticks(sizes)
    axes.set_title(f"Fastest setting of each method, {_conditions(temperature, batch)}")
    return _lines(points, axes)


def efficiency(axes: Any, run: Document, temperature: float, batch: int = 1) -> bool:
    """Block efficiency against the nodes of a full tree."""
    drafting = [r for r in run["results"] if r["nodes"] and r["block_efficiency"]]
    here = [r for r in drafting if (r["temperature"], _batch(r)) == (temperature, batch)]
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for nodes in sorted({r["nodes"] for r in here}):
        for method, result in best([r for r in here if r["nodes"] == nodes], efficiency_of).items():
            mean, error = result["block_efficiency"], result["block_efficiency_se"] or 0.0
            points.setdefault(method, []).append((nodes, mean, mean - error, mean + error))
    axes.set(xlabel="drafted nodes of a full tree", ylabel="new tokens per forward of the target")
    size = f"{_size(run) / 1e6:.3g} M parameters{_inflated(run)}"
    axes.set_title(f"{size}, {_conditions(temperature, batch)}: best shape ± standard error")
    return _lines(points, axes)


def cost(axes: Any, document: Document) -> bool:
    """A forward's time against its tokens, and what reading the weights once takes."""
    results = document["milliseconds"]
    for backend, context in dict.fromkeys((r["backend"], r["context"]) for r in results):
        here = sorted((r for r in results if (r["backend"], r["context"]) == (backend, context)), key=lambda r: r["tokens"])
        x, y = [r["tokens"] for r in here], [r["median"] for r in here]
        spread = [[r["median"] - r["least"] for r in here], [r["most"] - r["median"] for r in here]]
        axes.errorbar(x, y, yerr=spread, marker="o", markersize=4, capsize=2, label=f"{backend}, context {context}")
    line = limit(document)
    label = f"all weights read once, {document['bytes_per_second'] / 1e9:.3g} GB/s"
    axes.axhline(line, color="black", linestyle="--", label=label)
    ticks = sorted({r["tokens"] for r in results})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="tokens of the forward", ylabel="milliseconds")
    axes.set_title(f"Forward of the target, {name_of(document)}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return bool(results)
