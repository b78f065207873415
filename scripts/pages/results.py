"""The result pages: what was measured, on what, by which command, one page a topic, from the stored reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from scripts.pages.tables import first_table, sections, tables

STORED = "benchmarks/results"
MADE = "<!-- Written by `python -m scripts.pages` from the stored reports; change it there. -->\n\n"


def pages(root: Path) -> dict[str, str]:
    """File name in ``docs/results`` -> page."""

    def stored(name: str) -> str:
        return (root / STORED / name).read_text(encoding="utf-8")

    made = {
        "methods.md": _methods(stored("peers-cpu.md")),
        "programs.md": _programs({name: stored(name) for name in ("smollm2-cpu.md", "all-peers-cpu.md")}),
        "trees.md": _trees(stored("trees-cpu.md")),
        "verifiers.md": _verifiers(stored("verify-cpu.md")),
        "translation.md": _translation(stored("translate-cpu.md")),
    }
    return {name: MADE + page for name, page in made.items()}


def _methods(report: str) -> str:
    parts = [
        "# Methods against transformers\n",
        "Every method and the methods of transformers wrote the same texts with the same weights. Each method had the same "
        "number of settings; the table shows the fastest. Figures are medians over repeats, with the extremes in brackets. "
        "Speed ratios are taken inside each repeat.\n",
        _made_by(_command(report), "peers-cpu.md"),
        _machine(report),
    ]
    columns = ["fastest setting", "block efficiency", "tokens/s", "÷ generate"]
    parts += [f"## Temperature {t}\n\n{table.markdown(columns)}\n" for t, table in tables(report, "### Against")]
    return "\n".join(parts)


def _programs(reports: Mapping[str, str]) -> str:
    parts = [
        "# Other programs\n",
        "transformers, OpenVINO GenAI and llama.cpp ran in one interleaved run with Draftwood. All used the same weights, "
        "number format and threads. SmolLM2 is a published chat model, and its drafter comes with this package. An inflated "
        "pair has the distribution of the bundled pair at the cost of a larger target. It shows what drafting saves on a "
        "larger model, if the draft is as good.\n",
        "Above temperature 0 OpenVINO GenAI with a draft model samples from another distribution than the target's. "
        "The stored report holds the test that shows it.\n",
    ]
    for name, report in reports.items():
        for section in sections(report):
            title = section.split("\n", 1)[0].rstrip(":")
            parts += [f"## {title}\n", _made_by(_quoted(section), name), _machine(section)]
            for temperature, table in tables(section, "### Against"):
                columns = ["fastest setting", "block efficiency", "tokens/s", "÷ generate"]
                parts.append(f"Temperature {temperature}:\n\n{table.markdown(columns)}\n")
    return "\n".join(parts)


def _trees(report: str) -> str:
    parts = [
        "# Trees of 14 and 30 nodes\n",
        "Each method drafted trees of exactly 14 or 30 nodes. The table shows the best shape of each method and its block "
        "efficiency with the standard error over prompts. Other programs used the machine during this run, so its times "
        "are left out. `hybrid+traversal` (the draft's best tokens, and one drawn from the rest) kept less than "
        "`rsd-s+traversal` in every column, and the next version removed method `hybrid`.\n",
        _made_by(_command(report), "trees-cpu.md"),
        _machine(report),
    ]
    for temperature, table in tables(report, "### Fixed target budget"):
        parts.append(f"## Temperature {temperature}\n\n{table.markdown(table.columns)}\n")
    return "\n".join(parts)


def _verifiers(report: str) -> str:
    parts = [
        "# Cost of verifying\n",
        "The table shows milliseconds from the target's scores at one tree to the next token. The tree has 3 x 10 nodes, "
        "the scores are made up, and no model runs. *Plain PyTorch* is recursive rejection sampling as the paper writes it. "
        "It applies the processors of transformers at every node. The `coupled` verifier gets a shared-noise tree, the "
        "others a stochastic beam.\n",
        _made_by(_command(report), "verify-cpu.md"),
    ]
    for part in re.split(r"^## ", report, flags=re.MULTILINE)[1:]:
        table = first_table(part)
        parts.append(f"## {part.splitlines()[0]}\n\n{table.markdown(table.columns)}\n")
    return "\n".join(parts)


def _translation(report: str) -> str:
    table = first_table(report.split("### 60 sentences", 1)[1])
    return "\n".join(
        [
            "# Translation\n",
            "The bundled German to English pair translated 60 held-out sentences, one at a time. *equal* counts the "
            "sentences whose tokens are those of the target's own greedy translation. Rows with a beta above 1 change the "
            "text on purpose. CTranslate2, which drafts nothing, is the fastest program on this small target. Heads and "
            "layer skip (also as the assistant of *assisted*) lost to plain decoding (*ar*) and were removed.\n",
            _made_by(_quoted(report), "translate-cpu.md"),
            _machine(report),
            "## One sentence at a time\n",
            table.markdown(["system", "tokens/s", "÷ generate", "tokens per pass", "BLEU", "equal"]) + "\n",
        ]
    )


def _made_by(commands: list[str], name: str) -> str:
    shown = "\n".join(f"* `{command}`" for command in commands)
    return f"Made by:\n\n{shown}\n\nThe full report is [{name}](../../{STORED}/{name}).\n"


def _command(report: str) -> list[str]:
    """The command in the comment on top, without the remark behind it."""
    found = re.match(r"<!-- (.*?)(?: \([^)]*\))? -->", report)
    if found is None:
        raise ValueError("the report has no command on top: put it there")
    return [found[1]]


def _quoted(report: str) -> list[str]:
    """The commands between back quotes above the first heading."""
    return [" ".join(command.split()) for command in re.findall(r"^`([^`]+)`", report.split("\n# ", 1)[0], re.MULTILINE)]


def _machine(report: str) -> str:
    """The list below the first title: models, prompts, processor, versions."""
    found = re.search(r"^# .*\n\n((?:\* .*\n)+)", report, re.MULTILINE)
    return "" if found is None else found[1]
