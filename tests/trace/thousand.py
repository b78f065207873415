"""Replays 1,000 rounds of every lossless pair of method and verifier, and prints the counts as JSON."""

from __future__ import annotations

import json

from draftwood.core.methods import METHODS
from tests.trace.replay import replay
from tests.trace.runs import run

PAIRS = [(spec.name, verifier) for spec in METHODS.values() for verifier in spec.verifiers if verifier != "greedy"]
ROWS = 20


def report(method: str, verifier: str) -> dict[str, object]:
    replayed, agreed, differences, first = 0, 0, list[str](), 0
    while replayed + agreed < 1000:
        for found in map(replay, run(method, verifier, rows=ROWS, length=60, first=first)):
            replayed, agreed, differences = replayed + found.replayed, agreed + found.agreed, differences + found.differences
        first += ROWS
    return {
        "method": method, "verifier": verifier, "replayed": replayed, "agreed": agreed, "differences": differences[:3],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps([report(*pair) for pair in PAIRS]))
