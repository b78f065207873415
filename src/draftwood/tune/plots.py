"""Reports that are looked at instead of read: speeds, accepted tokens, costs. They need matplotlib (extra ``plots``)."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.core.limits import Limits
from draftwood.core.settings import Method, Sampling
from draftwood.trace.records import Trace
from draftwood.tune.documents import check_writable

if TYPE_CHECKING:
    from draftwood.api import Pair
    from draftwood.draft.adaptive.learnt import Costs

_FORMS: Final = (".svg", ".html")
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Wong's, for colour-blind readers


@final
@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a report shows.

    Attributes:
        title: of the report.
        speeds: temperature -> name of a method -> tokens per second: median, least and most.
        traces: temperature -> recorded texts of the method that was chosen.
        costs: the controller's estimates; None where nothing adaptive ran.
    """

    title: str
    speeds: Mapping[float, Mapping[str, tuple[float, float, float]]]
    traces: Mapping[float, Sequence[Trace]] = field(default_factory=dict)
    costs: Costs | None = None


def recorded(
    pair: Pair, prompts: Sequence[Sequence[int]], methods: Mapping[float, Method], max_new_tokens: int, seed: int
) -> tuple[dict[float, list[Trace]], Costs | None]:
    """Texts of a method at each temperature, recorded, and what the adaptive methods take a round to cost afterwards.

    Args:
        prompts: token ids.
        methods: temperature -> method.
        max_new_tokens: of each text.
        seed: of every text.
    """
    limits = Limits(max_new_tokens=max_new_tokens)
    traces = {}
    for temperature, method in methods.items():
        requests = pair.requests(prompts, limits, [seed] * len(prompts))
        sampling = Sampling(temperature=temperature)
        traces[temperature] = [pair.traced([request], sampling, method)[0] for request in requests]
    found = [known.by_rows[1].costs for known in pair.learnt.values() if 1 in known.by_rows]
    return traces, found[-1] if found else None


def check_report(path: Path) -> None:
    """Refuse a report that cannot be written before anything is measured.

    Raises:
        ConfigError: matplotlib is missing, the name ends in neither ``.svg`` nor ``.html``, or the folder is missing.
    """
    if path.suffix not in _FORMS:
        raise ConfigError(f"--report {path} ends in {path.suffix or 'nothing'}: give a name that ends in .svg or .html")
    _figure_class()
    check_writable(path, "--report")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        wanted = 'pip install "draftwood[plots]"'
        raise ConfigError(f"a report needs the package matplotlib ({error}); install it with: {wanted}") from error
    return Figure


def write_report(path: Path, measured: Measured) -> None:
    """Write the report as SVG, or as an HTML page that holds the SVG.

    Raises:
        ConfigError: matplotlib is missing.
        OSError: the file cannot be written.
    """
    figure = _figure_class()(figsize=(12, 9), layout="constrained")
    speeds, depths, ranks, cost = figure.subplots(2, 2).flat
    figure.suptitle(measured.title)
    draw_speeds(speeds, measured)
    draw_accepted(depths, measured, "depth")
    draw_accepted(ranks, measured, "rank")
    draw_costs(cost, measured)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    if path.suffix == ".html":
        body = svg[svg.index("<svg") :].replace("<svg ", '<svg style="max-width: 100%; height: auto" ', 1)
        name = escape(measured.title)
        svg = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{name}</title>\n<body>{body}</body></html>\n'
    replace_file(path, svg)


def draw_speeds(axes: Any, measured: Measured) -> None:
    """Bars with extremes, a colour for each temperature."""
    names = list(dict.fromkeys(name for found in measured.speeds.values() for name in found))
    height = 0.8 / max(1, len(measured.speeds))
    for number, (temperature, found) in enumerate(measured.speeds.items()):
        rows = [names.index(name) + number * height for name in found]
        middle, least, most = zip(*found.values(), strict=True)
        spread = [[a - b for a, b in zip(middle, least, strict=True)], [b - a for a, b in zip(middle, most, strict=True)]]
        label = f"temperature {temperature:g}"
        axes.barh(rows, middle, height * 0.9, xerr=spread, color=_colour(number), capsize=3, label=label)
    axes.set_yticks([row + height * (len(measured.speeds) - 1) / 2 for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set(title="Speed by method", xlabel="tokens per second: median and extremes")
    axes.legend()


def accepted_by(traces: Sequence[Trace], key: str) -> dict[int, float]:
    """Accepted tokens a round, by ``depth`` or by ``rank`` among siblings; both from 1."""
    rounds = [made for trace in traces for made in trace.rounds]
    kept = Counter(getattr(made.nodes[node], key) + (key == "rank") for made in rounds for node in made.path)
    return {value: kept[value] / len(rounds) for value in range(1, max(kept, default=0) + 1)}


def draw_accepted(axes: Any, measured: Measured, key: str) -> None:
    """Accepted tokens a round by depth or rank."""
    width = 0.8 / max(1, len(measured.traces))
    for number, (temperature, traces) in enumerate(measured.traces.items()):
        found = accepted_by(traces, key)
        name = f"temperature {temperature:g}: {traces[0].method}" if traces else f"temperature {temperature:g}"
        axes.bar(
            [value + number * width for value in found], list(found.values()), width * 0.9, color=_colour(number), label=name
        )
    axes.set(title=f"Accepted tokens by {key}", xlabel=f"{key}, from 1", ylabel="accepted tokens per round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if measured.traces:
        axes.legend()


def forwards_of(traces: Mapping[float, Sequence[Trace]]) -> list[tuple[int, float]]:
    """Nodes, the root included, and milliseconds of each forward but a text's first, which reads the prompt."""
    rounds = [made for found in traces.values() for trace in found for made in trace.rounds if made.number]
    return [(len(made.nodes), made.seconds.get("target", 0.0) * 1000) for made in rounds]


def draw_costs(axes: Any, measured: Measured) -> None:
    """Measured forwards of the target, and what the controller takes a round with so many nodes to cost."""
    points = forwards_of(measured.traces)
    if points:
        axes.scatter(
            *zip(*points, strict=True), s=14, alpha=0.5, color=_colour(0), label="a forward of the target, measured"
        )
    if measured.costs is not None:
        c, most = measured.costs, max((nodes for nodes, _ in points), default=16)
        nodes = list(range(1, most + 1))
        estimate = [1000 * (c.base + (c.tree + c.node * (n - 1) if n > 1 else 0.0)) for n in nodes]
        axes.plot(nodes, estimate, color=_colour(1), label="a round without its levels, as the controller takes it")
    axes.set(title="Cost of a forward", xlabel="nodes, the root included", ylabel="milliseconds", ylim=(0, None))
    if points or measured.costs is not None:
        axes.legend()


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
