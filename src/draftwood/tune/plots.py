"""Reports that are looked at instead of read: speeds, accepted tokens, costs. They need matplotlib (extra ``plots``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final, final

from draftwood.core.errors import ConfigError
from draftwood.core.files import check_writable, replace_file
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.sampling.settings import Sampling
from draftwood.trace.records import Trace
from draftwood.tune.charts import Bar, draw_bars, draw_costs, figure_class

if TYPE_CHECKING:
    from draftwood.api import Pair
    from draftwood.draft.adaptive.learnt import Costs

_FORMS: Final = (".svg", ".html")
_KEYS: Final = {"depth": "depth below the root", "rank": "place among siblings"}
_NARROW, _WIDE, _SPACE = 360, 520, 16  # pixels: a chart of the page, a chart of the SVG, between charts
_PAGE: Final = Template("""\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>$title</title>
<style>
:root { color-scheme: light dark; font-family: system-ui, sans-serif }
body { margin: 16px auto; padding: 0 16px; max-width: 1500px; columns: 348px; column-gap: 16px }
h1 { column-span: all; margin: 0 0 16px; font-size: 20px }
svg { display: block; width: 100%; height: auto; margin: 0 auto 16px; max-width: 520px; break-inside: avoid }
</style>
<body><h1>$title</h1>
$body
</body></html>
""")


@final
@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a report shows.

    Attributes:
        title: of the report.
        speeds: temperature -> tokens per second of each method.
        note: what the bars of the speeds are.
        traces: temperature -> recorded texts of the method that was chosen.
        costs: the controller's estimates; None where nothing adaptive ran.
    """

    title: str
    speeds: Mapping[float, Sequence[Bar]]
    note: str
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
    check_writable(path, "--report")
    figure_class()


def write_report(path: Path, measured: Measured) -> None:
    """Write the report as SVG, or as an HTML page that holds the charts.

    Raises:
        ConfigError: matplotlib is missing.
        OSError: the file cannot be written.
    """
    if path.suffix == ".html":
        name = escape(measured.title)
        body = "\n".join(charts(measured, _NARROW))
        made = _PAGE.substitute(title=name, body=body)
    else:
        made = _sheet(charts(measured, _WIDE))
    replace_file(path, made)


def charts(measured: Measured, width: int) -> list[str]:
    """The four charts, each as wide as this."""
    speeds = {f"temperature {temperature:g}": bars for temperature, bars in measured.speeds.items()}
    found = [draw_bars("Speed by method", speeds, note=measured.note, width=width)]
    for key in ("depth", "rank"):
        panels = {
            f"temperature {temperature:g}: {traces[0].method}": [
                Bar(label=f"{key} {value}", value=mean, shown=f"{mean:.2f}") for value, mean in accepted.items()
            ]
            for temperature, traces in measured.traces.items()
            if traces and (accepted := accepted_by(traces, key))
        }
        if panels:
            note = f"accepted tokens per round, by {_KEYS[key]}"
            found.append(draw_bars(f"Accepted tokens by {key}", panels, note=note, width=width))
    points, line = forwards_of(measured.traces), []
    note = "Points: forwards of the target, measured."
    if measured.costs is not None:
        line = estimates_of(measured.costs, max((nodes for nodes, _ in points), default=16))
        note += " Line: a round without its levels, as the controller takes it."
    if points or line:
        found.append(draw_costs("Cost of a forward", points, line, note=note, width=width))
    return found


def _sheet(found: Sequence[str]) -> str:
    """Charts as one SVG, in two columns of about the same height."""
    sizes = [float(part.split('height="', 1)[1].split('"', 1)[0]) for part in (svg[: svg.index(">")] for svg in found)]
    ends, parts = [float(_SPACE), float(_SPACE)], []
    for svg, high in zip(found, sizes, strict=True):
        column = ends.index(min(ends))
        x = _SPACE + column * (_WIDE + _SPACE)
        parts.append(svg.replace("<svg ", f'<svg x="{x:.0f}" y="{ends[column]:.0f}" ', 1))
        ends[column] += high + _SPACE
    width, height = 2 * _WIDE + 3 * _SPACE, max(ends)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, *parts, "</svg>\n"])


def accepted_by(traces: Sequence[Trace], key: str) -> dict[int, float]:
    """Accepted tokens a round, by ``depth`` or by ``rank`` among siblings; both from 1."""
    rounds = [made for trace in traces for made in trace.rounds]
    kept = Counter(getattr(made.nodes[node], key) + (key == "rank") for made in rounds for node in made.path)
    return {value: kept[value] / len(rounds) for value in range(1, max(kept, default=0) + 1)}


def forwards_of(traces: Mapping[float, Sequence[Trace]]) -> list[tuple[int, float]]:
    """Nodes, the root included, and milliseconds of each forward but a text's first, which reads the prompt."""
    rounds = [made for found in traces.values() for trace in found for made in trace.rounds if made.number]
    return [(len(made.nodes), made.seconds.get("target", 0.0) * 1000) for made in rounds]


def estimates_of(costs: Costs, most: int) -> list[tuple[int, float]]:
    """Nodes, and the milliseconds that the controller takes a round with so many to cost, without its levels."""
    more = {n: costs.tree + costs.node * (n - 1) if n > 1 else 0.0 for n in range(1, most + 1)}
    return [(n, 1000 * (costs.base + extra)) for n, extra in more.items()]
