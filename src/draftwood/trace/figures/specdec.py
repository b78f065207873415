"""Figure 3: SpecDec's rows of decoder input, draft, verification, output and next input, for one round of a translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Final, final

from draftwood.trace.figures.canvas import PILL, SIZE, SMALL, Canvas
from draftwood.trace.figures.round import round_of
from draftwood.trace.figures.scene import Scene, drafted_chain
from draftwood.trace.labels import mono_width, number, sans_width, shorten, visible
from draftwood.trace.records import Distribution, Trace, TracedRound

_MARGIN: Final = 16.0
_GAP: Final = 12.0
_WRAPPED: Final = 880  # the source sentence is no wider
_BEST: Final = 3  # candidates of a position
_LONGEST: Final = 130.0  # width of a column's text
ROWS: Final = ("decoder input", "draft", "spec-verify", "output", "next input")


@final
@dataclass(frozen=True)
class Position:
    """What happened in one place of the decoder's input.

    Attributes:
        drafted: the node that was drafted there; None behind the draft's end.
        kept: whether its token was accepted.
        reached: whether the verifier came so far.
        candidates: the target's best tokens there, with their probabilities; those that would have been kept first.
        kept_tokens: which of them would have been kept.
        output: the token that joined the text; None behind the first rejection.
    """

    drafted: int | None
    kept: bool
    reached: bool
    candidates: list[tuple[int, float | None]]
    kept_tokens: frozenset[int]
    output: int | None


def positions_of(made: TracedRound) -> list[Position]:
    """The positions after the root: one for every drafted token of the chain, and one for the target's own."""
    chain, out, count = drafted_chain(made), [], len(made.path)
    for place in range(max(len(chain), count + 1)):
        node, parent = chain[place] if place < len(chain) else None, chain[place - 1] if place else 0
        choice = next((c for c in made.choices if c.node == parent and place <= count), None)
        given = made.nodes[parent].target if place <= count else None
        kept = choice.kept if choice is not None else []
        best = _candidates(given, kept)
        output = made.tokens[place] if place < len(made.tokens) else None  # fewer than were kept where the text ends
        out.append(Position(node, place < count, place <= count, best, frozenset(kept), output))
    return out


def _candidates(given: Distribution | None, kept: Sequence[int]) -> list[tuple[int, float | None]]:
    probs = {} if given is None else dict(zip(given.tokens, given.probs, strict=True))
    order = [*kept, *(token for token in probs if token not in kept)]
    return [(token, probs.get(token)) for token in order[:_BEST]]


def draw_specdec(trace: Trace, number: int, *, width: int = 1180) -> str:
    """A round of block drafting as SVG.

    Args:
        trace: the recorded translation.
        number: the round's place in ``trace.rounds``.
        width: in pixels; what does not fit in one line of positions goes to the next.

    Raises:
        ConfigError: there is no such round.
    """
    made, width = round_of(trace, number), max(width, 348)
    words = f"Round {made.number + 1}: {len(made.path)} of {len(made.nodes) - 1} drafted tokens kept."
    canvas = Canvas("Spec-drafting and spec-verification", words, f"dw-spec{made.number}-{width}")
    scene = Scene(trace, made, canvas)
    title = f"Round {made.number + 1}: draft all masks at once, verify in one forward"
    canvas.text(_MARGIN, 26, title if width > 600 else f"Round {made.number + 1}: draft and verify", "head-line", size=14)
    y = 50.0
    for line in _wrapped(visible(trace.source_text, spaces=False), min(width, _WRAPPED) - 2 * _MARGIN):
        canvas.text(_MARGIN, y, line, "code")
        y += 18
    columns: list[Position | None] = [None, *positions_of(made)]  # the text before the masks comes first
    wide, label, y = _width(scene, columns[1:]), 104.0 if width >= 700 else 0.0, y + 10
    in_line = max(1, int((width - 2 * _MARGIN - label + _GAP) // (wide + _GAP)))
    for start in range(0, len(columns), in_line):
        y = _system(scene, y, label, columns[start : start + in_line], wide)
    used = 2 * _MARGIN + label + min(in_line, len(columns)) * (wide + _GAP) - _GAP
    return canvas.finish(width if width < _WRAPPED else max(used, _WRAPPED), y)


def _wrapped(text: str, width: float) -> list[str]:
    """Lines that fit; words longer than a line go on in the next one."""
    advance = max(map(partial(mono_width, size=SIZE), text), default=0.0) or SIZE
    return wrap(text, max(1, int(width / advance))) or [""]


def _width(scene: Scene, columns: Sequence[Position | None]) -> float:
    """The width of all columns: that of their widest text."""
    positions = [place for place in columns if place is not None]
    listed = [token for place in positions for token, _ in place.candidates]
    cells = [scene.round.nodes[place.drafted].token for place in positions if place.drafted is not None]
    cells += [place.output for place in positions if place.output is not None]
    widths = [mono_width(scene.text(token), SMALL) + 44 for token in listed]
    widths += [mono_width(scene.text(token), 12.0) + 30 for token in cells]
    return min(_LONGEST, max([72.0, *widths]))


def _prefix(scene: Scene) -> str:
    """The text before the masks: the accepted prefix up to the root."""
    done = sum(len(made.tokens) for made in scene.trace.rounds if made.number < scene.round.number)
    return "".join(scene.text(token) for token in scene.trace.tokens[:done]) or scene.text(scene.round.nodes[0].token)


def _system(scene: Scene, y: float, label: float, columns: Sequence[Position | None], width: float) -> float:
    """One line of columns, with all five rows; returns the lower edge."""
    canvas, on_top = scene.canvas, 0.0 if label else 16.0
    heights = (30.0, 30.0, _BEST * 17.0 + 34, 30.0, 30.0)
    tops = [y + sum(heights[:row]) + (row + 1) * on_top + row * 8 for row in range(len(ROWS))]
    for row, name in enumerate(ROWS):
        at = tops[row] + 18 if label else tops[row] - 3
        group = canvas.group("row-name")
        canvas.rect(_MARGIN, at - 11, sans_width(name, SMALL), 14, "mat", within=group)
        canvas.text(_MARGIN, at, name, "head-line", within=group, size=SMALL)
    for place, column in enumerate(columns):
        x = _MARGIN + label + place * (width + _GAP)
        if column is None:
            text = _prefix(scene)
            end = shorten(text[::-1], width - 16, 12.0)[::-1]  # cut in front
            for row in (0, 3, 4):
                _cell(scene, x, tops[row], width, end, "plain", text)
        else:
            canvas.line([(x + width / 2, tops[0] + 15), (x + width / 2, tops[4] + 15)], "dotted")
            _column(scene, x, tops, width, column)
    return tops[-1] + 30 + 20


def _column(scene: Scene, x: float, tops: list[float], width: float, place: Position) -> None:
    if place.drafted is not None:
        _cell(scene, x, tops[0], width, "[MASK]", "plain")
        token = scene.round.nodes[place.drafted].token
        kind = "c3" if place.kept else "c2" if place.reached else "plain"
        data = {"node": place.drafted, "token": token}
        _cell(scene, x, tops[1], width, scene.text(token), kind, scene.title(place.drafted), data)
    _verified(scene, x, tops[2], width, place)
    if place.output is None:
        _cell(scene, x, tops[3], width, "[BLANK]", "plain", "not used: behind the first rejection")
        _cell(scene, x, tops[4], width, "[MASK]", "plain")
        return
    own = not place.kept
    title = f"{scene.text(place.output)}\n" + ("the target's own token" if own else "drafted and kept")
    for row in (3, 4):
        _cell(scene, x, tops[row], width, scene.text(place.output), "own" if own else "c3", title, {"token": place.output})


def _cell(
    scene: Scene, x: float, y: float, width: float, words: str, kind: str, title: str = "",
    data: Mapping[str, object] | None = None,
) -> None:  # fmt: skip
    group = scene.canvas.group("cell", title, data=data)
    scene.canvas.rect(x, y + 4, width, PILL, kind, within=group, radius=4)
    look = "quiet" if words in ("[MASK]", "[BLANK]") else "code"
    fitting = shorten(words, width - 10, 12.0)
    scene.canvas.text(x + width / 2, y + 19, fitting, look, within=group, anchor="middle")


def _verified(scene: Scene, x: float, y: float, width: float, place: Position) -> None:
    """The target's best tokens with their probabilities, below the verdict on the drafted one."""
    canvas, height = scene.canvas, _BEST * 17.0 + 30
    group = canvas.group("verified", data={"accepted": place.kept, "output": place.output})
    canvas.rect(x, y + 2, width, height, "card" if place.reached else "plain", within=group, radius=4)
    if not place.reached:
        canvas.text(x + width / 2, y + 6 + height / 2, "[BLANK]", "quiet", within=group, anchor="middle", size=SMALL)
        return
    if place.drafted is not None:
        sign, kind = ("✓", "yes") if place.kept else ("✗", "no")
        canvas.text(x + 6, y + 18, sign, kind, within=group, size=13)
        words = shorten(scene.text(scene.round.nodes[place.drafted].token), width - 28, SMALL)
        canvas.text(x + 22, y + 18, words, "code" if place.kept else "strike", within=group, size=SMALL)
    else:
        canvas.text(x + 6, y + 18, "extra token", "quiet", within=group, size=10)
    for rank, (token, prob) in enumerate(place.candidates):
        value = "" if prob is None else number(prob)
        kind = "code" if token in place.kept_tokens or (not place.kept_tokens and token == place.output) else "quiet"
        base = y + 37 + rank * 17
        canvas.text(x + 6, base, shorten(scene.text(token), width - 44, SMALL), kind, within=group, size=SMALL)
        canvas.text(x + width - 5, base, value, "quiet", within=group, anchor="end", size=10)
