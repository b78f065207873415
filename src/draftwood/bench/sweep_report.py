"""The Markdown report of a sweep, a function of the JSON document alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from draftwood.bench.report import Result, efficiency_cell, head, speed_of, spread_cell, table

NOTES = """\
* **Tokens/s** are new tokens per wall second of the whole call, from token ids to token ids: one figure per repeat over all
  prompts; shown are the median and, in brackets, the extremes.
* **Ratios** are taken inside each repeat, then their median; above 1 the setting named first (the row) is faster.
* Every prompt goes round all settings before the next one, in shuffled order; seeds are equal for all settings and differ
  between repeats. The untrained draft has a run of its own, with plain decoding measured again in it.
* **Best fixed**: the highest median of all fixed settings, plain decoding among them. It was chosen by the times that it is
  judged by, and so looks faster than it is. **Others' best**: in each repeat the fixed setting that was fastest in the
  *other* repeats taken together; that choice knows nothing of the repeat that it is judged in."""


def markdown(document: dict[str, Any]) -> str:
    """The whole report."""
    results, untrained = document["results"], document["untrained"]
    blocks = [head(document, "auto beside fixed settings"), *_verdicts(document)]
    if untrained:
        blocks += ["## With an untrained draft", "The draft's configuration with fresh weights."]
        rows = [[f"{r['temperature']:g}", r["setting"], _drafting(r), *_figures(r)] for r in untrained]
        blocks.append(table(["temperature", "setting", "draft forwards per round", *_FIGURES], rows))
    for temperature in document["config"]["temperatures"]:
        if here := [r for r in results if r["temperature"] == temperature]:
            blocks += [f"## Temperature {temperature:g}", table(["setting", *_FIGURES], _sorted_rows(here))]
    return "\n\n".join([*blocks, "## How to read this", NOTES]) + "\n"


def _verdicts(document: dict[str, Any]) -> Iterator[str]:
    """One line per temperature: what ``auto`` is, and how it stands beside plain decoding and the best."""
    if not document["auto"]:
        return
    rows = []
    for found in document["auto"]:
        here = [r for r in document["results"] if r["temperature"] == found["temperature"]]
        auto, best = (next(r for r in here if r["setting"] == name) for name in ("auto", found["best"]))
        others = found["over_others_best"]
        rows.append([
            f"{found['temperature']:g}",
            f"{_named(found['method'])} ({'profile' if found['profile'] else 'no profile'})",
            spread_cell(auto["tokens_per_second"], 1),
            spread_cell(auto["speedup"]["ar"], 2),
            f"{best['setting']}: {spread_cell(best['tokens_per_second'], 1)}",
            spread_cell(found["over_best"], 2),
            "" if others is None else spread_cell(others, 2),
        ])  # fmt: skip
    header = ["temperature", "auto", "tokens/s", "÷ plain", "best fixed", "÷ best fixed", "÷ others' best"]
    yield "## How auto stands"
    yield table(header, rows)


def _named(method: dict[str, Any]) -> str:
    """A method in few words."""
    shape = method["shape"] or (f"{method['nodes']} nodes" if method["nodes"] else "")
    if method["method"] == "shared-noise" and not shape:
        shape = "paced"
    least = "" if method["least"] is None else f"least {method['least']:g}"
    return " ".join(part for part in (method["method"], shape, least, "+", method["verifier"]) if part)


_FIGURES = ("block efficiency", "tokens/s", "÷ plain")


def _sorted_rows(here: Sequence[Result]) -> list[list[str]]:
    return [[r["setting"], *_figures(r)] for r in sorted(here, key=speed_of, reverse=True)]


def _figures(result: Result) -> list[str]:
    over = result["speedup"]
    speed = spread_cell(result["tokens_per_second"], 1)
    return [efficiency_cell(result), speed, spread_cell(over["ar"], 2) if "ar" in over else ""]


def _drafting(result: Result) -> str:
    asked, rounds = (sum(sum(r[name]) for r in result["repeats"]) for name in ("draft_forwards", "forwards"))
    return f"{asked / rounds:.2f}"
