"""The chart and the small table of the README, from one stored run against other programs."""

from __future__ import annotations

import re
from pathlib import Path

from draftwood.tune.charts import Bar, draw_bars
from scripts.pages.tables import Table, sections, tables

STORED = "benchmarks/results/all-peers-cpu.md"
RUNS = {"The bundled pair": "bundled pair", "Inflated to 110 M": "inflated to 110 M"}
NAMES = {
    "adaptive (openvino)": "Draftwood `adaptive`, OpenVINO",
    "adaptive (torch)": "Draftwood `adaptive`, PyTorch",
    "ar (openvino)": "Draftwood, plain decoding, OpenVINO",
    "assisted": "transformers, assisted generation",
    "genai": "OpenVINO GenAI, plain",
    "genai-draft": "OpenVINO GenAI, draft model",
    "llama.cpp": "llama.cpp, plain",
}
INEXACT = ("genai-draft",)  # above temperature 0 it samples from another distribution, says the same stored run
CHARTED = "Inflated to 110 M"


def ratios(root: Path) -> dict[tuple[str, str], dict[str, str]]:
    """``(run, temperature) -> system -> speed over transformers' generate``; all in float32."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for section in sections((root / STORED).read_text(encoding="utf-8")):
        for size in filter(section.startswith, RUNS):
            for temperature, table in tables(section, "### Against"):
                found[size, temperature] = _over_generate(table)
    return found


def _over_generate(table: Table) -> dict[str, str]:
    column = table.columns.index("÷ generate")
    return {re.sub(r" \d+$", "", row[0]): row[column].split()[0] for row in table.rows}


def readme_table(root: Path) -> str:
    """Speed over ``generate``, a line for each system."""
    found = ratios(root)
    cases = [(size, temperature) for size in RUNS for temperature in ("0", "1")]
    lines = [
        "| | " + " | ".join(f"{RUNS[size]}, T = {temperature}" for size, temperature in cases) + " |",
        "|---|" + "---:|" * len(cases),
    ]
    for system, name in NAMES.items():
        cells = [found[case].get(system, "") + ("*" if _inexact(system, case[1]) else "") for case in cases]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _inexact(system: str, temperature: str) -> bool:
    return system in INEXACT and temperature != "0"


def draw(root: Path) -> str:
    """Bars: speed over ``generate`` for one size of the target, at temperatures 0 and 1."""
    found = ratios(root)
    panels = {f"temperature {t}": _bars(found[CHARTED, t], t) for t in ("0", "1")}
    title = "Speed over transformers' generate (1.0), target inflated to 110 M parameters, 2 CPU cores"
    note = f"Green: adaptive trees. * samples from another distribution than the target's. Source: {STORED}"
    return draw_bars(title, panels, note=note, width=1056, one=1.0)


def _bars(speeds: dict[str, str], temperature: str) -> list[Bar]:
    order = sorted((name for name in NAMES if name in speeds), key=lambda name: -float(speeds[name]))
    return [
        Bar(
            label=NAMES[name].replace("`", "").replace("Draftwood, plain decoding", "Draftwood, plain"),
            value=float(speeds[name]),
            shown=speeds[name] + ("*" if _inexact(name, temperature) else ""),
            marked=name.startswith("adaptive"),
        )
        for name in order
    ]
