"""Figure 1: one round of recursive speculative decoding, from left to right."""

from __future__ import annotations

from typing import Final

from draftwood.core.errors import ConfigError
from draftwood.trace.figures.canvas import PILL, SMALL, Canvas
from draftwood.trace.figures.draft import DraftColumns, draw_draft, draw_target
from draftwood.trace.figures.scene import PITCH, Scene
from draftwood.trace.figures.verdicts import OUTPUT_GAP, TITLES, VerdictColumns, draw_output, draw_verdicts
from draftwood.trace.labels import sans_width, shorten, title_of
from draftwood.trace.records import Trace, TracedRound

WIDE: Final = 1360  # from this width on, all columns stand in one row
MIDDLE: Final = 760  # from this width on, the parts below one another are wide
_MARGIN: Final = 16.0
_TOP: Final = 94.0  # below title and column heads


def draw_round(trace: Trace, number: int, *, width: int = WIDE) -> str:
    """A round as SVG.

    Args:
        trace: the recorded text.
        number: the round's place in ``trace.rounds``.
        width: room in pixels. The parts stand in one row, or one below the other; below 348 pixels it is the same as 348.

    Raises:
        ConfigError: there is no such round.
    """
    made = round_of(trace, number)
    words = (
        f"Round {made.number + 1}: {len(made.nodes) - 1} drafted tokens, {len(made.path)} accepted, one of the target's own."
    )
    canvas = Canvas(
        f"Round {made.number + 1} of {trace.method} with the {trace.verifier} verifier", words, f"dw{made.number}-{width}"
    )
    scene = Scene(trace, made, canvas)
    return _in_one_row(scene) if width >= WIDE else _in_one_column(scene, wide=width >= MIDDLE)


def round_of(trace: Trace, number: int) -> TracedRound:
    """The round at this place."""
    if not 0 <= number < len(trace.rounds):
        kept = f"0 to {len(trace.rounds) - 1}" if trace.rounds else "none"
        raise ConfigError(f"the trace has no round {number}: its rounds are {kept}")
    return trace.rounds[number]


def _finished(scene: Scene, width: float, height: float) -> str:
    """The figure, with its heading."""
    made, trace = scene.round, scene.trace
    line = f"Round {made.number + 1}: {title_of(trace)}, temperature {trace.temperature:g}"
    scene.canvas.text(_MARGIN, 26, _fitting(line, width, 14), "head-line", size=14)
    rest = f"{len(made.tokens)} new tokens from one forward of the target"
    if made.seconds:
        rest += "; ms: " + ", ".join(f"{stage} {value * 1000:.1f}" for stage, value in made.seconds.items())
    scene.canvas.text(_MARGIN, 44, _fitting(rest, width, 12), "note")
    if made.stop:
        scene.canvas.text(_MARGIN, 60, shorten(f"tree ended: {made.stop}", width - 2 * _MARGIN, SMALL), "quiet", size=SMALL)
    return scene.canvas.finish(width, height)


def _fitting(line: str, width: float, size: float) -> str:
    """The line, cut at a word where it would not fit."""
    words = line.split(" ")
    while sans_width(" ".join(words), size) > width - 2 * _MARGIN and len(words) > 1:
        words.pop()
    return " ".join(words).rstrip(",;:")


def _head(scene: Scene, x: float, y: float, words: str) -> None:
    """The head of a column, in one or two lines."""
    lines = words.split("|")
    for place, line in enumerate(lines):
        scene.canvas.text(x, y - 14 * (len(lines) - 1 - place), line, "head-line")


def _in_one_row(scene: Scene) -> str:
    canvas, top = scene.canvas, _TOP + 30
    columns = DraftColumns(72, 96, 190, 76)
    rows, lower = draw_draft(scene, _MARGIN, top, columns)
    target = _MARGIN + columns.width + 20
    draw_target(scene, target, rows, 250)
    for y in rows.values():
        canvas.line([(_MARGIN + columns.width - 4, y), (target - 2, y)], arrow=True)
    verdicts = VerdictColumns(target + 250 + 28, 130, 96)
    kept, tried = draw_verdicts(scene, top, verdicts)
    output = verdicts.right + OUTPUT_GAP
    end = draw_output(scene, output, 96, kept, top - 12)
    _draft_heads(scene, _MARGIN, columns, _TOP - 2)
    _head(scene, target, _TOP - 2, "Target model|probability")
    _head(scene, verdicts.left, _TOP - 2, TITLES.get(scene.trace.verifier, "Verification"))
    _head(scene, output, _TOP - 2, "Output|token")
    bottom = max(lower, tried, end + PILL) + 22
    start = _MARGIN + columns.label + 48
    canvas.line([(output + 48, end + PILL / 2), (output + 48, bottom), (start, bottom), (start, bottom - 12)], arrow=True)
    _feedback(scene, (start + output) / 2, bottom + 18, "middle")
    return _finished(scene, output + 96 + _MARGIN, bottom + 48)


def _feedback(scene: Scene, x: float, y: float, anchor: str) -> None:
    scene.canvas.text(x, y, "feedback output tokens for each iteration", "note", anchor=anchor)
    legend = "bold: accepted, dashed: rejected, faint: not tried"
    scene.canvas.text(x, y + 16, legend, "note", anchor=anchor, size=SMALL)


def _draft_heads(scene: Scene, left: float, columns: DraftColumns, y: float) -> None:
    if columns.label:
        _head(scene, left, y, "Draft|iteration")
    _head(scene, left + columns.label, y, "Input|token")
    _head(scene, left + columns.probs, y, "Draft model|probability")
    _head(scene, left + columns.drafted, y, "Draft|token")


def _in_one_column(scene: Scene, *, wide: bool) -> str:
    """The parts one below the other."""
    left, top, room = _MARGIN + 12, _TOP + 22, 720 if wide else 312
    columns = DraftColumns(72, 108, 244, 88) if wide else DraftColumns(0, 70, 78, 34)
    _draft_heads(scene, left, columns, _TOP - 2)
    lower = draw_draft(scene, left, top, columns)[1] + 46
    rows = {node: lower + 16 + place * 26 for place, node in enumerate(range(len(scene.round.nodes)))}
    _head(scene, left, lower - 10, "Target model probability")
    draw_target(scene, left, rows, room, 84)
    lower += len(rows) * 26 + 50
    _head(scene, left, lower - 10, TITLES.get(scene.trace.verifier, "Verification"))
    verdicts = VerdictColumns(left, 440 if wide else 108, 120 if wide else 84)
    lower = draw_verdicts(scene, lower, verdicts)[1] + 34
    _head(scene, left, lower - 10, "Output token")
    bottom, in_line = lower + PILL + 12, room // 104
    for place, node in enumerate([0, *scene.round.path, None]):
        x, y = left + place % in_line * 104, lower + 12 + place // in_line * (PILL + 8)
        scene.own_pill(x, y, 96) if node is None else scene.pill(x, y, 96, node)
        bottom = y + PILL + 12
    points = [(left + 100, bottom), (10, bottom), (10, top + PITCH), (left - 4, top + PITCH)]
    scene.canvas.line(points, arrow=True)
    _feedback(scene, left, bottom + 18, "start")
    return _finished(scene, left + room + 12, bottom + 48)
