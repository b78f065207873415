"""The Markdown reports, functions of the JSON documents alone."""

from __future__ import annotations

from typing import Any, TypeAlias

from benchmarks.record import machine_lines
from benchmarks.report import spread_cell, table
from benchmarks.translate.run import PAUSE
from benchmarks.translate.systems import STAGES

Result: TypeAlias = dict[str, Any]

NOTES = f"""\
* **Sentences/s and tokens/s** are taken over the wall time of whole calls, from token ids of the sources to token ids of the
  translations, timed in the same way for every system. One figure per repeat; shown are the median and, in brackets, the
  extremes.
* CTranslate2 runs, and is timed, in a process of its own, from token strings to token strings. In one process with PyTorch
  both would share one OpenMP runtime, whose threads then sleep and wake at every operation, and slow PyTorch's systems down.
  Every turn of a system begins {PAUSE:g} s after the one before, when no threads wait actively any more.
* **÷ generate** is how many times faster the row is than greedy `generate` at the same batch size on the same sentences,
  inside each repeat; then the median and the extremes.
* **Tokens per pass** are tokens written per round of Draftwood, the target's own one included (block efficiency).
* Shares of the time: *draft* and *target* are what the two models' runners take, encoders included, *verify* is the
  verifier, *other* all the rest.
* **BLEU** is sacreBLEU's, with its defaults, against the references; *BLEU to greedy* is against what the target writes
  greedily through `generate`, one sentence at a time. *Equal* is in how many sentences the tokens are those, in every
  repeat. A method with tau > 0 and beta > 1 does not mean to write them.
* Every block of sentences goes round all systems before the next one, in shuffled order."""


def markdown(document: dict[str, Any]) -> str:
    """The whole report of a measurement."""
    blocks = [_head(document)]
    for size in document["config"]["batch_size"]:
        here = [r for r in document["results"] if r["batch_size"] == size]
        if not here:
            continue
        blocks += [f"## Batch size {size}", _speeds(here, document["count"]), _stages(here)]
    blocks += _equality(document)
    return "\n\n".join([*(b for b in blocks if b), "## How to read this", NOTES]) + "\n"


def exact_markdown(document: dict[str, Any]) -> str:
    """The whole report of a comparison without speed."""
    text = (
        "Every sentence by every method that keeps only the target's best tokens, against what the target writes greedily "
        "through `generate`, one sentence at a time."
    )
    return "\n\n".join([_head(document), text, *_equality(document)]) + "\n"


def _head(document: dict[str, Any]) -> str:
    config = document["config"]
    repeats = max((len(r.get("repeats", ())) for r in document["results"]), default=0)
    amount = f"; {repeats} of {config['repeats']} repeats" if repeats else ""
    languages = f"{config['source_language']} to {config['target_language']}"
    lines = [
        "# Draftwood translation benchmark" + (" (interrupted: partial results)" if document["partial"] else ""),
        "",
        *(
            f"* {name}: {m['type']}, {m['parameters'] / 1e6:.3g} M parameters, {m['dtype']}, run by {m['engine']}"
            for name, m in document["models"].items()
        ),
        f"* {document['count']} held-out sentences, {languages}{amount}",
        *([f"* not measured, as no drafter was given: {', '.join(left)}"] if (left := document["left_out"]) else []),
        *machine_lines(document),
    ]
    return "\n".join(lines)


def _speeds(here: list[Result], count: int) -> str:
    header = ["system", "sentences/s", "tokens/s", "÷ generate", "tokens per pass", "BLEU", "BLEU to greedy", "equal"]
    rows = []
    for result in here:
        efficiency, ratio = result["block_efficiency"], result["ratio"]
        rows.append(
            [
                result["system"],
                spread_cell(result["sentences_per_second"], 1),
                spread_cell(result["tokens_per_second"], 0),
                "" if ratio is None else spread_cell(ratio, 2),
                "" if efficiency is None else f"{efficiency:.2f}",
                *(f"{result[name]:.2f}" for name in ("bleu", "bleu_to_greedy")),
                f"{result['equal']} of {count}",
            ]
        )
    return table(header, rows)


def _stages(here: list[Result]) -> str:
    """Where Draftwood's time goes; nothing if no such system was measured."""
    shares = [(r["system"], r["share"]) for r in here if r["share"] is not None]
    names = [*STAGES, "other"]
    rows = [[system, *(f"{100 * share[name]:.1f}" for name in names)] for system, share in shares]
    return table(["of the time", *(f"{name} %" for name in names)], rows) if rows else ""


def _equality(document: dict[str, Any]) -> list[str]:
    """The check of every system that means to write the target's greedy translations."""
    meant = [r for r in document["results"] if r["differing"] is not None]
    if not meant:
        return []
    rows = [
        [
            r["system"],
            str(r["batch_size"]),
            str(document["count"]),
            str(len(r["differing"])),
            f"{max(entry['gap'] for entry in r['differing']):.2g}" if r["differing"] else "",
        ]
        for r in meant
    ]
    header = ["system", "batch size", "sentences", "differing", "largest top-2 gap where they part"]
    text = (
        f"Arithmetic in {document['models']['target']['dtype']}. A translation may part from the target's greedy one only "
        "where two scores are equal to within rounding."
    )
    return ["## Equal to the target's greedy translation", text, table(header, rows)]
