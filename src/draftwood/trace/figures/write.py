"""All figures of some traces as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from draftwood.core.errors import ConfigError, named
from draftwood.core.files import replace_file
from draftwood.trace.figures.race import draw_race
from draftwood.trace.figures.round import draw_round
from draftwood.trace.figures.specdec import draw_specdec
from draftwood.trace.records import Trace


def is_plain(trace: Trace) -> bool:
    """Whether nothing was drafted in any round."""
    return all(len(made.nodes) == 1 for made in trace.rounds)


def is_translation(trace: Trace) -> bool:
    """Whether the text translates a source sentence."""
    return bool(trace.source)


def race_of(traces: Sequence[Trace]) -> tuple[Trace, Trace] | None:
    """A run without drafting and the first other one of the same prompt; None where there are no two."""
    plain = next((t for t in traces if t.rounds and is_plain(t) and not is_translation(t)), None)
    if plain is None:
        return None
    others = [t for t in traces if t.rounds and not is_plain(t) and t.prompt == plain.prompt and t.source == plain.source]
    return (plain, others[0]) if others else None


def write_figures(folder: Path, traces: Sequence[Trace]) -> list[Path]:
    """Write a file for every round, and ``race.svg`` where plain and speculative decoding of one prompt are given.

    Figure 1 is ``TEXT-round-N.svg`` with both numbers counted from 1; rounds of a translation are drawn as figure 3 too,
    ``TEXT-translation-N.svg``.

    Raises:
        ConfigError: there are no rounds.
        OSError: a file cannot be written.
    """
    if not any(trace.rounds for trace in traces):
        raise ConfigError("there are no recorded rounds to draw: record a text with at least one token")
    with named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, svg in _figures(traces):
            written.append(folder / name)
            replace_file(written[-1], svg)
    return written


def _figures(traces: Sequence[Trace]) -> Iterator[tuple[str, str]]:
    for number, trace in enumerate(traces, start=1):
        for place, made in enumerate(trace.rounds):
            yield f"{number}-round-{made.number + 1:03}.svg", draw_round(trace, place)
            if is_translation(trace):
                yield f"{number}-translation-{made.number + 1:03}.svg", draw_specdec(trace, place)
    if (pair := race_of(traces)) is not None:
        yield "race.svg", draw_race(*pair)
