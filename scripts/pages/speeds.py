"""The chart and the small table of the README, from stored runs against other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.pages.charts import Bar, draw_bars
from scripts.pages.tables import Table, sections, tables


@dataclass(frozen=True, kw_only=True)
class Run:
    """A stored run.

    Attributes:
        stored: its file.
        begins: how its title begins.
        title: a short one.
    """

    stored: str
    begins: str
    title: str


CHAT = Run(stored="benchmarks/results/smollm2-cpu.md", begins="SmolLM2", title="SmolLM2")
INFLATED = Run(stored="benchmarks/results/all-peers-cpu.md", begins="Inflated to 110 M", title="inflated to 110 M")
RUNS = (CHAT, INFLATED)
TEMPERATURES = ("0", "1")
NAMES = {
    "adaptive": "Draftwood `adaptive`",
    "ar": "Draftwood, plain decoding",
    "assisted": "transformers, assisted generation",
    "genai": "OpenVINO GenAI, plain",
    "genai-lookup": "OpenVINO GenAI, prompt lookup",
    "genai-draft": "OpenVINO GenAI, draft model",
    "llama.cpp": "llama.cpp, plain",
    "llama.cpp-lookup": "llama.cpp, prompt lookup",
}
INEXACT = ("genai-draft",)  # above temperature 0 it samples from another distribution, says the same stored run


def ratios(root: Path) -> dict[tuple[Run, str], dict[str, str]]:
    """``(run, temperature) -> system -> speed over transformers' generate``, each in one number format."""
    found: dict[tuple[Run, str], dict[str, str]] = {}
    for run in RUNS:
        for section in sections((root / run.stored).read_text(encoding="utf-8")):
            if section.startswith(run.begins):
                against = dict(tables(section, "### Against"))
                found |= {(run, t): _over_generate(against[t]) for t in TEMPERATURES}
    return found


def _over_generate(table: Table) -> dict[str, str]:
    column = table.columns.index("÷ generate")
    return {re.sub(r" \d+(x\d+)?$", "", row[0]): row[column].split()[0] for row in table.rows}


def readme_table(root: Path) -> str:
    """Speed over ``generate``, a line for each system."""
    found = ratios(root)
    cases = [(run, temperature) for run in RUNS for temperature in TEMPERATURES]
    lines = [
        "| | " + " | ".join(f"{run.title}, T = {temperature}" for run, temperature in cases) + " |",
        "|---|" + "---:|" * len(cases),
    ]
    for system, name in NAMES.items():
        cells = [_cell(found[case], system, case[1]) for case in cases]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(speeds: Mapping[str, str], system: str, temperature: str) -> str:
    return speeds[system] + "*" * _inexact(system, temperature) if system in speeds else ""


def _inexact(system: str, temperature: str) -> bool:
    return system in INEXACT and temperature != "0"


def draw(root: Path) -> str:
    """Bars: speed over ``generate`` for the chat model, at temperatures 0 and 1."""
    found = ratios(root)
    panels = {f"temperature {t}": _bars(found[CHAT, t], t) for t in TEMPERATURES}
    title = "Speed over transformers' generate (1.0), SmolLM2-135M-Instruct, 2 CPU cores"
    note = f"Green: adaptive trees. All systems use the same weights in bfloat16. Source: {CHAT.stored}"
    return draw_bars(title, panels, note=note, one=1.0)


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
