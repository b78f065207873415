"""From raw measurements to the figures of the report; everything here is plain arithmetic on lists."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import median
from typing import Any, TypeAlias

from benchmarks.measure import Sample

Columns: TypeAlias = dict[str, list[Any]]
"""One repeat: a list per quantity, one entry per batch of prompts."""

STAGES = ("draft", "target", "verify", "other")


def columns(samples: Sequence[Sample]) -> Columns:
    """The raw numbers of one repeat as they stand in the JSON file."""
    names = ("forwards", "row_forwards", "draft_forwards", "target_tokens", "draft_tokens", "drafted", "seen")
    times = ("seconds", "target_seconds", "draft_seconds", "verify_seconds")
    return {
        "new_tokens": [sum(map(len, s.tokens)) for s in samples],
        **{name: [getattr(s, name) for s in samples] for name in names},
        **{name: [round(getattr(s, name), 6) for s in samples] for name in times},
    }


def spread(values: Sequence[float | int]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": float(median(values)), "min": float(min(values)), "max": float(max(values))}


def speed(repeat: Columns) -> float:
    """Tokens per second of one repeat over all its prompts, those of all rows of a batch together."""
    tokens: float = sum(repeat["new_tokens"])
    return tokens / sum(repeat["seconds"])


def efficiency(repeats: Sequence[Columns]) -> tuple[float | None, float | None]:
    """New tokens per target forward and row, and its standard error over batches; None where unknown.

    The estimate is the ratio of the sums; its error is that of a ratio estimator, the repeats of a batch taken together.
    """
    turns = range(max(len(r["seconds"]) for r in repeats))  # fewer in a repeat that was interrupted
    sums = [(_total(repeats, "new_tokens", turn), _total(repeats, "row_forwards", turn)) for turn in turns]
    pairs = [(tokens, forwards) for tokens, forwards in sums if forwards]
    total = sum(forwards for _, forwards in pairs)
    if not total:
        return None, None
    ratio = sum(tokens for tokens, _ in pairs) / total
    n = len(pairs)
    if n < 2:
        return ratio, None
    squares = sum((tokens - ratio * forwards) ** 2 for tokens, forwards in pairs)
    return ratio, sqrt(n / (n - 1) * squares) / total


def _total(repeats: Sequence[Columns], name: str, turn: int) -> int:
    return sum(r[name][turn] for r in repeats if turn < len(r[name]))


def seconds_per_stage(repeats: Sequence[Columns]) -> dict[str, float]:
    """Wall time of all texts by stage; ``other`` is what no forward and no verifier claims."""
    sums = {stage: sum(sum(r[f"{stage}_seconds"]) for r in repeats) for stage in STAGES[:-1]}
    whole = sum(sum(r["seconds"]) for r in repeats)
    return {**sums, "other": max(0.0, whole - sum(sums.values()))}


def figures(repeats: Sequence[Columns]) -> dict[str, Any]:
    """Every derived figure of one setting at one temperature; among them None for what is not known of other programs."""
    stages = seconds_per_stage(repeats)
    forwards, row_forwards = (sum(sum(r[name]) for r in repeats) for name in ("forwards", "row_forwards"))
    outside = stages["verify"] + stages["other"]
    whole = sum(stages.values())
    seen = all(all(r.get("seen", ())) for r in repeats)
    kept, error = efficiency(repeats)
    return {
        "block_efficiency": kept,
        "block_efficiency_se": error,
        "tokens_per_second": spread([speed(repeat) for repeat in repeats if repeat["seconds"]]),
        "drafted_per_round": sum(sum(r["drafted"]) for r in repeats) / row_forwards if seen else None,
        "share": {stage: seconds / whole for stage, seconds in stages.items()} if seen else None,
        "outside_share": outside / whole if seen else None,
        "outside_ms_per_round": 1000 * outside / forwards if seen else None,
    }


def ratio(ours: Sequence[Columns], base: Sequence[Columns]) -> dict[str, float]:
    """How many times faster ``ours`` is than ``base``: the ratio inside each repeat, then its median and extremes."""
    return spread([speed(a) / speed(b) for a, b in zip(ours, base, strict=False)])
