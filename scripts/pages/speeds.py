"""The chart and the tables of speeds, from stored runs against other programs."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.pages.charts import Bar, draw_bars
from scripts.pages.tables import Table, tables

RUNS = {
    "Intel Xeon with AMX, 2 cores": "benchmarks/results/smollm2-cpu.md",
    "AMD EPYC without AMX, 2 cores": "benchmarks/results/smollm2-epyc-cpu.md",
}
FIRST = next(iter(RUNS))
TEMPERATURES = ("0", "1")
NAMES = {
    "adaptive": "Draftwood, drafting",
    "ar": "Draftwood, plain decoding",
    "genai-lookup": "OpenVINO GenAI, prompt lookup",
    "genai": "OpenVINO GenAI, plain",
    "llama.cpp": "llama.cpp, plain",
    "llama.cpp-lookup": "llama.cpp, prompt lookup",
    "generate": "transformers `generate`",
}
COLUMNS = ("tokens/s", "÷ generate")


def measured(root: Path, machine: str) -> dict[tuple[str, str], list[str]]:
    """``(system, temperature) -> cells`` of ``COLUMNS`` in the run on a machine, with their extremes."""
    report = (root / RUNS[machine]).read_text(encoding="utf-8")
    found: dict[tuple[str, str], list[str]] = {}
    for temperature, table in tables(report, "### Against"):
        found |= {(name, temperature): cells for name, cells in _cells(table).items()}
    return found


def _cells(table: Table) -> dict[str, list[str]]:
    columns = [table.columns.index(name) for name in COLUMNS]
    return {re.sub(r" \d+$", "", row[0]): [row[column] for column in columns] for row in table.rows}


def short_table(root: Path, machine: str = FIRST) -> str:
    """The medians of a run, a line for each system."""
    cells = measured(root, machine)
    lines = [
        "| | " + " | ".join(f"{column}, T = {t}" for t in TEMPERATURES for column in COLUMNS) + " |",
        "|---|" + "---:|" * (len(TEMPERATURES) * len(COLUMNS)),
    ]
    for system, name in NAMES.items():
        row = [cell.split()[0] for t in TEMPERATURES for cell in cells[system, t]]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def draw(root: Path) -> str:
    """Bars: speed over ``generate`` for the chat model, at temperatures 0 and 1."""
    cells = measured(root, FIRST)
    panels = {
        f"temperature {t}": _bars({name: cells[name, t][1].split()[0] for name in NAMES if name != "generate"})
        for t in TEMPERATURES
    }
    title = "Speed over transformers' generate (1.0), SmolLM2-135M-Instruct, 2 CPU cores"
    note = f"Green: adaptive trees. All systems use the same weights in bfloat16. Source: {RUNS[FIRST]}"
    return draw_bars(title, panels, note=note, one=1.0)


def _bars(speeds: dict[str, str]) -> list[Bar]:
    return [
        Bar(label=NAMES[name], value=float(shown), shown=shown, marked=name == "adaptive")
        for name, shown in sorted(speeds.items(), key=lambda item: -float(item[1]))
    ]
