"""The Markdown report of a sweep, a function of the JSON document alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.report import Result, efficiency_cell, head, speed_of, spread_cell, table

NOTES = """\
* **Tokens/s** are new tokens per wall second of the whole call, from token ids to token ids: one figure per repeat over all
  prompts; shown are the median and, in brackets, the extremes.
* **Ratios** are taken inside each repeat, then their median; above 1 the setting named first (the row) is faster.
* Every prompt goes round all settings before the next one, in shuffled order; seeds are equal for all settings and differ
  between repeats. The final is a run of its own, with plain decoding measured again.
* **Best fixed**: of all fixed settings, plain decoding among them, the one with the highest median in the first run; it is
  compared with `auto` in the final, whose texts have other seeds: the best of many looks faster than it is where it was
  chosen. **Fastest**: of the fixed settings of the final, the one that was fastest there; it looks faster than it is."""


def markdown(document: dict[str, Any]) -> str:
    """The whole report."""
    blocks = [head(document, "auto and fixed settings"), *_verdicts(document)]
    for temperature in document["config"]["temperatures"]:
        for title, run in (
            (f"Temperature {temperature:g}", "results"),
            (f"Temperature {temperature:g}: the final", "final"),
        ):
            if here := [r for r in document[run] if r["temperature"] == temperature]:
                blocks += [f"## {title}", table(["setting", *_FIGURES], _sorted_rows(here))]
    return "\n\n".join([*blocks, "## How to read this", NOTES]) + "\n"


def _verdicts(document: dict[str, Any]) -> Iterator[str]:
    """One line per temperature: what ``auto`` is, and its speed against plain decoding and the best, in the final."""
    if not document["auto"]:
        return
    rows = []
    for found in document["auto"]:
        here = {r["setting"]: r for r in document["final"] if r["temperature"] == found["temperature"]}
        auto = here["auto"]
        rows.append([
            f"{found['temperature']:g}",
            f"{_named(found['method'])} ({'profile' if found['profile'] else 'no profile'})",
            spread_cell(auto["tokens_per_second"], 1),
            spread_cell(auto["speedup"]["ar"], 2),
            *(_against(here[found[name]], found[f"over_{name}"]) for name in ("best", "fastest")),
        ])  # fmt: skip
    yield "## How auto stands"
    yield table(["temperature", "auto", "tokens/s", "÷ plain", "÷ best fixed", "÷ fastest"], rows)


def _against(rival: Result, over: dict[str, float]) -> str:
    return f"{spread_cell(over, 2)}: {rival['setting']}, {spread_cell(rival['tokens_per_second'], 1)}"


def _named(method: dict[str, Any]) -> str:
    """A method in few words."""
    shape = method["shape"] or (f"{method['nodes']} nodes" if method["nodes"] else "")
    if method["method"] == "shared-noise" and not shape:
        shape = "as it pays"
    return " ".join(part for part in (method["method"], shape, "+", method["verifier"]) if part)


_FIGURES = ("block efficiency", "tokens/s", "÷ plain")


def _sorted_rows(here: Sequence[Result]) -> list[list[str]]:
    return [[r["setting"], *_figures(r)] for r in sorted(here, key=speed_of, reverse=True)]


def _figures(result: Result) -> list[str]:
    over = result["speedup"]
    speed = spread_cell(result["tokens_per_second"], 1)
    return [efficiency_cell(result), speed, spread_cell(over["ar"], 2) if "ar" in over else ""]
