"""Drafting while the target computes: both at the same time, against one after the other.

A drafter that goes on during the target's forward (PEARL, Liu et al. 2024, arXiv 2408.11850) saves at most its own time, and
only where the two leave each other their cores and their memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any, Final

from benchmarks.cost import forward, only_row
from benchmarks.report import table
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.hardware.threads import chosen_threads
from draftwood.runners.factory import reads_hidden
from draftwood.runners.protocols import Runner
from draftwood.sampling.rows import Row

CHAIN: Final = 4
"""Forwards of the draft, of one token each."""
_ROUNDS: Final = 5  # how often they are made behind one context
WAYS: Final = ("target", "draft", "in turn", "together")


def check_room(pairs: Mapping[str, Pair], context: int) -> None:
    """Refuse a context behind which a draft has no room.

    Raises:
        ConfigError: says which context, and what there is.
    """
    needed = context + _ROUNDS * CHAIN
    for _, _, draft in _drafting(pairs):
        if draft.max_length is not None and needed > draft.max_length:
            raise ConfigError(
                f"context {context} needs {needed} positions of the draft, which has {draft.max_length}: give a smaller one "
                "too, or a target without a draft"
            )


def measure(pairs: Mapping[str, Pair], context: int, sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of a forward of the target of so many tokens, of a drafted chain, and of both, by backend.

    Args:
        pairs: the same models by what runs them; those without a draft are left out, those whose draft reads hidden
            states of the target, and those on an accelerator, where both would stand in one queue.
        context: tokens before those of the forwards.
    """
    results = []
    for backend, target, draft in _drafting(pairs):
        taken: dict[tuple[int, str], list[float]] = {}
        with chosen_threads(target):  # as in decoding
            for size, way, seconds in _timed(target, draft, context, sizes, repeats):
                taken.setdefault((size, way), []).append(1e3 * seconds)
        results += [
            {"backend": backend, "context": context, "tokens": size} | {way: median(taken[size, way]) for way in WAYS}
            for size in sizes
        ]
    return results


def _drafting(pairs: Mapping[str, Pair]) -> Iterator[tuple[str, Runner, Runner]]:
    """What runs them, target and draft of those that are timed."""
    for backend, pair in pairs.items():
        if pair.draft is not None and not reads_hidden(pair.draft_model) and pair.target.device.type == "cpu":
            yield backend, pair.target, pair.draft


def _timed(
    target: Runner, draft: Runner, context: int, sizes: Sequence[int], repeats: int
) -> Iterator[tuple[int, str, float]]:
    text = [i % min(target.vocab_size, draft.vocab_size) for i in range(context)]

    rows: dict[Runner, Row] = {}

    def scored(size: int) -> None:
        forward(target, rows[target], size)

    def drafted(_size: int) -> None:
        for _ in range(CHAIN):
            forward(draft, rows[draft], 1)

    def in_turn(size: int) -> None:
        drafted(size)
        scored(size)

    def together(size: int) -> None:
        waiting = worker.submit(scored, size)
        drafted(size)
        waiting.result()

    ways = list(zip(WAYS, (scored, drafted, in_turn, together), strict=True))
    with ThreadPoolExecutor(1) as worker:
        for repeat in range(repeats):
            for size in sizes:
                rows.update((runner, only_row(runner, text)) for runner in (target, draft))
                in_turn(size)  # reads the context
                together(size)  # of the sizes that are timed, as other sizes take longer
                first = repeat % len(ways)
                for way, work in ways[first:] + ways[:first]:
                    start = perf_counter()
                    work(size)
                    yield size, way, perf_counter() - start
    target.clear()
    draft.clear()


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """The table, a function of the results alone; nothing without a draft."""
    if not results:
        return ""
    rows = [
        [r["backend"], str(r["tokens"]), *(f"{r[way]:.2f}" for way in WAYS), f"{r['together'] / r['in turn']:.2f}"]
        for r in results
    ]
    header = ["backend", "tokens", *WAYS, "together ÷ in turn"]
    return (
        f"## Drafting during the target's forward\n\n{table(header, rows)}\n\n"
        f"Milliseconds behind {results[0]['context']} tokens, medians: a forward of the target of so many tokens, {CHAIN} "
        "forwards of the draft of one token each, one after the other, and both at the same time, each with all threads.\n"
    )
