"""The Markdown report, a function of the JSON document alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from benchmarks.record import machine_lines
from benchmarks.settings import ENGINES, METHODS, PEERS, rank
from benchmarks.summary import STAGES, ratio

Result: TypeAlias = dict[str, Any]

NOTES = """\
* **Block efficiency** is new tokens per forward of the target, over all texts; ± is its standard error over prompts.
* *nodes* is the size of a full tree; *drafted/round* what the target really got to see, on average. Near the end of a
  text trees are cut. At temperature 0 independent chains are all the same chain, and it is scored once.
* **Tokens/s** are new tokens per wall second of the whole call, from token ids to token ids, timed
  from outside on both sides: one figure per repeat over all prompts; the table shows the median and, in brackets, the
  extremes.
* **Ratios** are taken inside each repeat, then their median; above 1 the setting named first (the row) is faster.
* Shares of the time: *draft* and *target* are the forwards of the two models (seen by hooks, the same on both sides),
  *verify* is Draftwood's verifier, *other* all the rest; *outside* is verify and other, per round (target forward).
  On an accelerator forwards are launched, not awaited: there only the whole is to be trusted.
* Every prompt goes round all settings before the next one, in shuffled order; seeds are equal for all
  settings and differ between repeats. At temperature 0 every repeat writes the same text.
* Other programs (`genai`: OpenVINO GenAI, `llama.cpp`) run the same weights in the same number format with as many threads
  and keep nothing between texts; of them only whole times are seen, and target forwards as they count them themselves.
  `llama.cpp-file` (xllamacpp) is another model: it runs the quantized weights of the target's GGUF file. On a processor with
  AMX llama-cpp-python runs without its extra weight buffers, with which it crashes.
* A method's *best* is the best of all shapes measured for it here: with more shapes to choose from, it gains by chance."""


def markdown(document: dict[str, Any]) -> str:
    """The whole report."""
    results, temperatures = document["results"], document["config"]["temperatures"]
    blocks = [head(document, "Draftwood benchmark")]
    for temperature in temperatures:
        here = [r for r in results if r["temperature"] == temperature]
        if not here:
            continue
        blocks.append(f"## Temperature {temperature:g}")
        blocks += [*_against_peers(here), *_all_settings(here)]
    blocks += _greedy(document)
    return "\n\n".join([*blocks, "## How to read this", NOTES]) + "\n"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    names = list(header)
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def head(document: dict[str, Any], title: str) -> str:
    """What was measured where."""
    config = document["config"]
    sources: dict[str, int] = {}
    for prompt in document["prompts"]:
        sources[prompt["source"]] = sources.get(prompt["source"], 0) + 1
    repeats = max((len(r["repeats"]) for r in document["results"]), default=0)
    models = [
        f"{part}: {m['type']}, {m['parameters'] / 1e6:.3g} M parameters, {m['dtype']}, "
        + (f"{m['attention']} attention, " if m["attention"] else "")
        + f"run by {m['engine']}"
        for part, m in document["models"].items()
    ]
    left_out = [f"**left out**: {skipped['method']}, {skipped['why']}" for skipped in document.get("skipped", ())]
    lines = [
        f"# {title}" + (" (interrupted: partial results)" if document["partial"] else ""),
        "",
        *(f"* {line}" for line in models),
        f"* prompts: {', '.join(f'{count} {name}' for name, count in sources.items())}; "
        f"up to {config['max_new_tokens']} new tokens; {repeats} of {config['repeats']} repeats",
        *machine_lines(document, *left_out),
    ]
    return "\n".join(lines)


def speed_of(result: Result) -> float:
    """Median tokens per second."""
    return float(result["tokens_per_second"]["median"])


def best(results: Iterable[Result], key: Callable[[Result], float]) -> dict[str, Result]:
    """The best result of every method, in the order of ``METHODS``; what several backends run counts for each."""
    found: dict[str, Result] = {}
    for result in results:
        method = result["method"]
        if method not in found or key(result) > key(found[method]):
            found[method] = result
    return {method: found[method] for method in sorted(found, key=rank) if method.partition(" ")[0] in METHODS}


def _against_peers(here: list[Result]) -> list[str]:
    """Each side's best settings by speed, and how many times faster the row is than the column."""
    fastest = best(here, speed_of)
    peers = {method: fastest[method] for method in PEERS + ENGINES if method in fastest}
    if not peers:
        return []
    tries = {method: sum(r["method"] == method for r in here) for method in fastest}
    header = ["fastest setting", "of", "block efficiency", "tokens/s", *(f"÷ {peer['setting']}" for peer in peers.values())]
    rows = [
        [
            result["setting"],
            str(tries[method]),
            efficiency_cell(result),
            spread_cell(result["tokens_per_second"], 1),
            *(spread_cell(ratio(result["repeats"], peer["repeats"]), 2) for peer in peers.values()),
        ]
        for method, result in fastest.items()
    ]
    others = ", OpenVINO GenAI and llama.cpp" if any(method in ENGINES for method in peers) else ""
    return [f"### Against transformers{others}", table(header, rows)]


def _all_settings(here: list[Result]) -> list[str]:
    """One line per setting with everything."""
    header = ["setting", "nodes", "drafted/round", "block efficiency", "tokens/s", "÷ ar", *(f"{s} %" for s in STAGES)]
    header += ["outside %", "outside ms/round"]
    rows = [
        [
            r["setting"],
            str(r["nodes"]),
            _known(r["drafted_per_round"], "{:.2f}"),
            efficiency_cell(r),
            spread_cell(r["tokens_per_second"], 1),
            spread_cell(r["speedup"]["ar"], 2) if "ar" in r["speedup"] else "",
            *(f"{100 * r['share'][stage]:.1f}" if r["share"] else "" for stage in STAGES),
            f"{100 * r['outside_share']:.1f}" if r["share"] else "",
            _known(r["outside_ms_per_round"], "{:.3f}"),
        ]
        for r in here
    ]
    return ["### All settings", table(header, rows)]


def _known(value: float | None, form: str) -> str:
    """A figure, or nothing where other programs do not tell it."""
    return "" if value is None else form.format(value)


def _greedy(document: dict[str, Any]) -> list[str]:
    """The check of every text at temperature 0 against ``generate``."""
    title = "## Equal to generate at temperature 0"
    checked = document["greedy"]
    if not checked:
        return [title, "Not checked: `generate` was not measured at temperature 0."]
    rows = [
        [
            check["setting"],
            str(check["compared"]),
            str(len(check["differing"])),
            f"{max(d['gap'] for d in check['differing']):.2g}" if check["differing"] else "",
        ]
        for check in checked
    ]
    header = ["setting", "prompts", "differing", "largest top-2 gap where they part"]
    dtype = document["models"]["target"]["dtype"]
    text = f"Arithmetic in {dtype}. A text may part from `generate` only where two scores are equal to within rounding."
    return [title, text, table(header, rows)]


def efficiency_cell(figures: Result) -> str:
    """Block efficiency and its standard error over prompts."""
    error = figures["block_efficiency_se"]
    if figures["block_efficiency"] is None:
        return ""
    return f"{figures['block_efficiency']:.3f}" + (f" ± {error:.3f}" if error is not None else "")


def spread_cell(values: dict[str, float], digits: int) -> str:
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f} to {values['max']:.{digits}f})"
