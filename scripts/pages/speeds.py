"""The chart and the small table of the README, from one stored run against other programs."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.pages.svg import box, line, picture, text
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
    title = "Speed over transformers' generate (1.0), target inflated to 110 M parameters, 2 CPU cores"
    parts = [text(24, 34, title, "title")]
    for temperature, left in (("0", 24), ("1", 548)):
        parts += _panel(found[CHARTED, temperature], temperature, left)
    parts.append(text(24, 318, "* samples from another distribution than the target's. Source: " + STORED, "small quiet"))
    words = "Bars of speed over transformers' generate for Draftwood, transformers, OpenVINO GenAI and llama.cpp."
    return picture(1056, 336, "Speed against other programs", words, parts)


def _panel(speeds: dict[str, str], temperature: str, left: float) -> list[str]:
    scale, start = 72.0, left + 216
    parts = [text(left, 66, f"temperature {temperature}", "quiet")]
    order = sorted((name for name in NAMES if name in speeds), key=lambda name: -float(speeds[name]))
    for number, name in enumerate(order):
        y, speed = 82 + number * 30, float(speeds[name])
        ours = name.startswith("adaptive")
        star = "*" if _inexact(name, temperature) else ""
        label = NAMES[name].replace("`", "").replace("Draftwood, plain decoding", "Draftwood, plain")
        parts.append(text(start - 10, y + 15, label, "small end"))
        parts.append(box(start, y, speed * scale, 20, "ours" if ours else "bar", 3))
        parts.append(text(start + speed * scale + 8, y + 15, f"{speed:.2f}{star}", "small"))
    bottom = 82 + len(order) * 30
    parts.append(line([(start + scale, 76), (start + scale, bottom)], "line"))
    return parts
