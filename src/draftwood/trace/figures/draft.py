"""Figure 1, left and middle: what the draft model reads and brings, and what the target says after every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from draftwood.core.draws import Draw
from draftwood.trace.figures.canvas import SMALL
from draftwood.trace.figures.scene import PITCH, Scene, colour_of, with_tokens
from draftwood.trace.labels import mono_width, number, shorten

NAME: Final = 30.0  # "p12" or "q12" in front of a distribution
BOX: Final = 34.0  # width of the target
_ARROW: Final = 16.0
_GAP: Final = 16.0  # between iterations
_NUMBERS: Final = 56.0  # room for p and q behind a drafted token
_ON_TOP: Final = 20.0  # the iteration's name, where it stands above its rows


@final
@dataclass(frozen=True)
class DraftColumns:
    """Where the columns are, from the panel's left edge.

    Attributes:
        label: the width of the iteration's name; 0 puts it above the rows.
        pill: the width of a token.
        bar: the width of a distribution, its name in front included.
        lines: the width of the lines between distributions and drafted tokens.
    """

    label: float
    pill: float
    bar: float
    lines: float

    @property
    def probs(self) -> float:
        return self.label + self.pill + 10

    @property
    def drafted(self) -> float:
        return self.probs + self.bar + self.lines

    @property
    def width(self) -> float:
        return self.drafted + self.pill + _NUMBERS


def draw_draft(scene: Scene, x: float, y: float, columns: DraftColumns) -> tuple[dict[int, float], float]:
    """Draw the panel with its left upper corner at ``x, y``; returns where every node's row is, and the lower edge."""
    on_top = _ON_TOP if columns.label == 0 else 0.0
    rows, top = {0: y + PITCH / 2}, y + PITCH
    scene.pill(x + columns.drafted, rows[0], columns.pill, 0)
    scene.canvas.text(x + columns.drafted + columns.pill + 6, rows[0] + 4, "root", "quiet", size=SMALL)
    if len(scene.round.nodes) == 1:
        scene.canvas.text(x + columns.label, rows[0] + 4, "nothing drafted", "quiet", size=SMALL)
    for depth in range(len(scene.levels) - 1):
        inputs, drafted = scene.inputs(depth), scene.levels[depth + 1]
        count = max(len(inputs), len(drafted))
        top += on_top
        for place, node in enumerate(drafted):
            rows[node] = top + (place + 0.5 + (count - len(drafted)) / 2) * PITCH
        at = {node: top + (i + 0.5 + (count - len(inputs)) / 2) * PITCH for i, node in enumerate(inputs)}
        _iteration(scene, x, (top, top + count * PITCH), depth, columns)
        _level(scene, x, at, rows, columns)
        top += count * PITCH + _GAP
    return rows, max(top - _GAP, y + PITCH)


def _iteration(scene: Scene, x: float, span: tuple[float, float], depth: int, columns: DraftColumns) -> None:
    """The name of an iteration, and the box of its stochastic beam."""
    canvas, colour, (top, bottom) = scene.canvas, colour_of(depth + 1), span
    group = canvas.group("iteration", data={"iteration": depth + 1})
    if columns.label:
        canvas.rect(x, top + 3, columns.label - 12, bottom - top - 6, colour, within=group, radius=6)
        canvas.text(x + (columns.label - 12) / 2, (top + bottom) / 2 + 5, str(depth + 1), "head-line", within=group,
                    anchor="middle", size=15)  # fmt: skip
    else:
        canvas.rect(x, top - 16, 86, 16, colour, within=group, radius=6)
        canvas.text(x + 7, top - 4, f"iteration {depth + 1}", "code", within=group, size=SMALL)
    if scene.beam:
        left = x + columns.probs + columns.bar + 8
        beam = canvas.group("beam", "stochastic beam search over all distributions of this iteration")
        canvas.rect(left, top + 1, columns.lines - 16, bottom - top - 2, "sbs", within=beam, radius=6)
        canvas.text(left + (columns.lines - 16) / 2, top + 13, "SBS", "quiet", within=beam, anchor="middle", size=SMALL)


def _level(scene: Scene, x: float, at: dict[int, float], rows: dict[int, float], columns: DraftColumns) -> None:
    nodes, canvas = scene.round.nodes, scene.canvas
    start, end = x + columns.probs + columns.bar, x + columns.drafted
    for node, y in at.items():
        scene.pill(x + columns.label, y, columns.pill, node)
        marked = {nodes[child].token: colour_of(nodes[child].depth) for child in scene.children[node]}
        if nodes[node].draft is None:
            words = "copied" if scene.round.draw == Draw.POINT_MASS else f"p{node}   -"
            canvas.text(x + columns.probs, y + 4, words, "quiet", size=SMALL)
        else:
            canvas.text(x + columns.probs, y + 4, f"p{node}", "quiet", size=SMALL)
            listed = with_tokens(nodes[node].draft, {nodes[n].token: nodes[n].draft_prob for n in scene.children[node]})
            scene.bar(x + columns.probs + NAME, y, columns.bar - NAME, listed, marked, "bar draft")
        for child in scene.children[node]:
            kept = nodes[child].verdict == "accepted"
            canvas.curve((start, y), (end, rows[child]), "path" if kept else "line")
    for child in sorted(child for node in at for child in scene.children[node]):
        scene.pill(end, rows[child], columns.pill, child)
        _numbers(scene, end + columns.pill + 6, rows[child], child)


def _numbers(scene: Scene, x: float, y: float, node: int) -> None:
    """The probabilities of a drafted token at its parent: the draft's above the target's."""
    item = scene.round.nodes[node]
    for letter, value, base in (("p", item.draft_prob, -3), ("q", item.target_prob, 10)):
        if value is not None:
            scene.canvas.text(x, y + base, f"{letter} {number(value)}", "quiet", size=10.5)


def draw_target(scene: Scene, x: float, rows: dict[int, float], width: float, labels: float = 0.0) -> None:
    """Draw the target's box and a bar for each node.

    Args:
        x: the left edge.
        rows: the height of each node's row.
        width: of the panel.
        labels: room for the nodes' texts in front of the box; 0 where lines from the drafted tokens lead to it.
    """
    canvas, nodes = scene.canvas, scene.round.nodes
    left = x + labels + (_ARROW if labels else 0)
    top, bottom = min(rows.values()) - 16, max(rows.values()) + 16
    group = canvas.group("target-model", f"one forward of {scene.trace.target} reads all {len(nodes)} nodes")
    canvas.rect(left, top, BOX, bottom - top, "target", within=group, radius=8)
    step = 15.0
    words = next((words for words in ("target model", "target") if bottom - top > (len(words) + 1) * step), "T")
    height = (top + bottom) / 2 - (len(words) - 1) * step / 2 + 4
    for place, letter in enumerate(words):
        if letter != " ":
            canvas.text(left + BOX / 2, height + place * step, letter, "code", within=group, anchor="middle")
    start = left + BOX + _ARROW
    for node, y in rows.items():
        if labels:
            label = str(node)
            canvas.text(x, y + 4, label, "quiet", size=SMALL)
            used = mono_width(label, SMALL) + 6
            canvas.text(x + used, y + 4, shorten(scene.text(nodes[node].token), labels - used - 4, 12.0))
            canvas.line([(x + labels, y), (left - 2, y)], arrow=True)
        canvas.line([(left + BOX, y), (start - 3, y)])
        canvas.text(start, y + 4, f"q{node}", "quiet", size=SMALL)
        marked = {nodes[child].token: colour_of(nodes[child].depth) for child in scene.children[node]}
        listed = with_tokens(nodes[node].target, {nodes[n].token: nodes[n].target_prob for n in scene.children[node]})
        scene.bar(start + NAME, y, x + width - start - NAME, listed, marked, "bar target-probs")
