"""Reports that are looked at instead of read: speeds and accepted tokens. They need matplotlib (extra ``plots``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from draftwood.core.errors import ConfigError
from draftwood.core.files import check_writable, replace_file
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.sampling.settings import Sampling
from draftwood.trace.records import Trace
from draftwood.tune.charts import Bar, draw_bars, figure_class

if TYPE_CHECKING:
    from draftwood.api import Pair

_KEYS: Final = {"depth": "depth below the root", "rank": "place among siblings"}
_WIDTH, _SPACE = 520, 16  # pixels: of a chart, and between charts


def recorded(
    pair: Pair, prompts: Sequence[Sequence[int]], methods: Mapping[float, Method], max_new_tokens: int, seed: int
) -> dict[float, list[Trace]]:
    """Texts of a method at each temperature, recorded.

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
    return traces


def check_report(path: Path) -> None:
    """Refuse a report that cannot be written before anything is measured.

    Raises:
        ConfigError: matplotlib is missing, the name does not end in ``.svg``, or the folder is missing.
    """
    if path.suffix != ".svg":
        raise ConfigError(f"--report {path} ends in {path.suffix or 'nothing'}: give a name that ends in .svg")
    check_writable(path, "--report")
    figure_class()


Traces: TypeAlias = Mapping[float, Sequence[Trace]]
"""Temperature -> recorded texts of the method that was chosen."""


def write_report(path: Path, speeds: Mapping[float, Sequence[Bar]], traces: Traces, *, note: str) -> None:
    """Write the report as SVG.

    Args:
        path: the file.
        speeds: temperature -> tokens per second of each method.
        traces: for the accepted tokens; may be empty.
        note: what the bars of the speeds are.

    Raises:
        ConfigError: matplotlib is missing.
        OSError: the file cannot be written.
    """
    replace_file(path, _sheet(charts(speeds, traces, note=note)))


def charts(speeds: Mapping[float, Sequence[Bar]], traces: Traces, *, note: str, width: int = _WIDTH) -> list[str]:
    """The three charts, each as wide as this."""
    by_title = {f"temperature {temperature:g}": bars for temperature, bars in speeds.items()}
    found = [draw_bars("Speed by method", by_title, note=note, width=width)]
    for key in ("depth", "rank"):
        panels = {
            f"temperature {temperature:g}: {texts[0].method}": [
                Bar(label=f"{key} {value}", value=mean, shown=f"{mean:.2f}") for value, mean in accepted.items()
            ]
            for temperature, texts in traces.items()
            if texts and (accepted := accepted_by(texts, key))
        }
        if panels:
            note = f"accepted tokens per round, by {_KEYS[key]}"
            found.append(draw_bars(f"Accepted tokens by {key}", panels, note=note, width=width))
    return found


def _sheet(found: Sequence[str]) -> str:
    """Charts as one SVG, in two columns of about the same height."""
    sizes = [float(part.split('height="', 1)[1].split('"', 1)[0]) for part in (svg[: svg.index(">")] for svg in found)]
    ends, parts = [float(_SPACE), float(_SPACE)], []
    for svg, high in zip(found, sizes, strict=True):
        column = ends.index(min(ends))
        x = _SPACE + column * (_WIDTH + _SPACE)
        parts.append(svg.replace("<svg ", f'<svg x="{x:.0f}" y="{ends[column]:.0f}" ', 1))
        ends[column] += high + _SPACE
    width, height = 2 * _WIDTH + 3 * _SPACE, max(ends)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, *parts, "</svg>\n"])


def accepted_by(traces: Sequence[Trace], key: str) -> dict[int, float]:
    """Accepted tokens a round, by ``depth`` or by ``rank`` among siblings; both from 1."""
    rounds = [made for trace in traces for made in trace.rounds]
    kept = Counter(getattr(made.nodes[node], key) + (key == "rank") for made in rounds for node in made.path)
    return {value: kept[value] / len(rounds) for value in range(1, max(kept, default=0) + 1)}
