"""Traces as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from typing import Final

from draftwood.trace.figures.write import is_translation, race_of
from draftwood.trace.labels import visible
from draftwood.trace.records import Trace
from draftwood.trace.text import describe_race, describe_round, describe_specdec

_LEAST: Final = 40  # columns of a figure


def traces_text(traces: Sequence[Trace]) -> str:
    """Every text with its rounds, as wide as the terminal, and plain decoding with the first text where both are there."""
    width = max(_LEAST, get_terminal_size((100, 24)).columns)
    parts = [part for trace in traces for part in _parts(trace, width)]
    if (pair := race_of(traces)) is not None:
        parts.append(describe_race(*pair, width=width))
    return "\n\n".join(parts)


def _parts(trace: Trace, width: int) -> Iterator[str]:
    names = f"target {trace.target}, draft {trace.draft or '-'}, seed {trace.seed}"
    yield "\n".join(
        visible(line, spaces=False) for line in (f"{trace.source_text or trace.prompt_text} -> {trace.text}", names)
    )
    describe = describe_specdec if is_translation(trace) else describe_round
    for place in range(len(trace.rounds)):
        yield describe(trace, place, width=width)
    if trace.dropped:
        yield f"{trace.dropped} more rounds were not kept (--rounds)."
