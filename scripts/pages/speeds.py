"""The chart and the tables of speeds, from stored runs against other programs."""

from __future__ import annotations

import re
from pathlib import Path

from draftwood.trace.figures.canvas import Canvas
from scripts.pages.tables import Table, tables

RUNS = {
    "Intel Xeon with AMX, 2 cores": "benchmarks/results/smollm2-cpu.md",
    "AMD EPYC without AMX, 2 cores": "benchmarks/results/smollm2-epyc-cpu.md",
}
FIRST = next(iter(RUNS))
TEMPERATURES = ("0", "1")
LACKING = {"AMD EPYC without AMX, 2 cores": ("llama.cpp", "llama.cpp-lookup")}
"""Programs that a run did not measure."""
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
_LEFT, _PANEL, _ROW, _ONE = 240, 560, 28, 35  # where bars begin; width of a panel; from bar to bar; width of a bar of 1.0


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


def systems_of(machine: str) -> list[str]:
    """The programs of a run, in the order of its table."""
    return [system for system in NAMES if system not in LACKING.get(machine, ())]


def short_table(root: Path, machine: str = FIRST) -> str:
    """The medians of a run, a line for each system."""
    cells = measured(root, machine)
    lines = [
        "| | " + " | ".join(f"{column}, T = {t}" for t in TEMPERATURES for column in COLUMNS) + " |",
        "|---|" + "---:|" * (len(TEMPERATURES) * len(COLUMNS)),
    ]
    for system in systems_of(machine):
        row = [cell.split()[0] for t in TEMPERATURES for cell in cells[system, t]]
        lines.append(f"| {NAMES[system]} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def draw(root: Path) -> str:
    """Bars: speed over ``generate`` for the chat model, at temperatures 0 and 1."""
    cells, systems = measured(root, FIRST), [system for system in NAMES if system != "generate"]
    title = "Speed over transformers' generate (1.0), SmolLM2-135M-Instruct, 2 CPU cores"
    note = f"Green: adaptive trees. All systems use the same weights in bfloat16. Source: {RUNS[FIRST]}"
    canvas, bottom = Canvas(title, note, "dw-speeds"), 66 + len(systems) * _ROW
    canvas.text(16, 28, title, "head-line", size=14)
    for number, temperature in enumerate(TEMPERATURES):
        left = _LEFT + number * _PANEL
        canvas.text(left, 54, f"temperature {temperature}", "note")
        shown = {system: cells[system, temperature][1].split()[0] for system in systems}
        for row, (system, value) in enumerate(sorted(shown.items(), key=lambda item: -float(item[1]))):
            _bar(canvas, left, 66 + row * _ROW, NAMES[system], value, "c3" if system == "adaptive" else "part2")
        canvas.line([(left + _ONE, 62), (left + _ONE, bottom)], "dotted")
    canvas.text(16, bottom + 24, note, "note")
    return canvas.finish(2 * _PANEL, bottom + 40)


def _bar(canvas: Canvas, left: float, top: float, name: str, value: str, kind: str) -> None:
    group = canvas.group("bar")
    canvas.text(left - 6, top + 16, name, "name", within=group, anchor="end")
    canvas.rect(left, top + 4, _ONE * float(value), 17, kind, within=group)
    canvas.text(left + _ONE * float(value) + 6, top + 16, value, "name", within=group)
