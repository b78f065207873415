"""The right part of figure 1: the verifier's trials from top to bottom, and the tokens that come out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from draftwood.trace.figures.canvas import PILL, SMALL
from draftwood.trace.figures.scene import Scene, colour_of, with_tokens
from draftwood.trace.labels import number, shorten
from draftwood.trace.records import Choice, Distribution, Trial

_TRIAL: Final = 66.0  # height of a trial
_NAME: Final = 34.0  # "q12''" in front of a distribution
_VALUE: Final = 40.0  # the candidate's probability behind it
_CHILD: Final = 28.0  # height of a child that is compared with the target's choice
OWN: Final = -1  # the target's own token among nodes
OUTPUT_GAP: Final = 26.0  # between the verdicts and the output: room for an arrow
TITLES: Final = {
    "recursive": "Recursive rejection sampling",
    "traversal": "Traversal, leaves first",
    "coupled": "Match the target's choice",
    "greedy": "Match the target's choice",
    "tolerance": "Near the target's best",
}


@final
@dataclass(frozen=True)
class VerdictColumns:
    """Where the columns are: distributions from ``left``, candidates at their right."""

    left: float
    bar: float
    pill: float

    @property
    def candidate(self) -> float:
        return self.left + _NAME + self.bar + _VALUE + 6

    @property
    def right(self) -> float:
        return self.candidate + self.pill + 20


def draw_verdicts(scene: Scene, y: float, columns: VerdictColumns) -> tuple[dict[int, float], float]:
    """Draw trials, or the target's choices, and the draw of the last token.

    Returns:
        The heights of the nodes of the path, and of the last token as ``OWN``; and the lower edge.
    """
    kept: dict[int, float] = {}
    if scene.round.choices:
        return kept, _choices(scene, y, columns, kept)
    end = scene.round.path[-1] if scene.round.path else 0
    top = _trials(scene, y, columns, kept)
    kept[OWN] = top + 18
    rejected = [t for t in scene.round.trials if scene.round.nodes[t.node].parent == end and not t.accepted]
    words = _prime("q", end, len(rejected) if scene.round.next_is_residual else 0)
    _named_bar(scene, columns, kept[OWN], words, scene.round.next_from, {scene.round.next_token: "own"})
    scene.own_pill(columns.candidate, kept[OWN], columns.pill)
    scene.canvas.text(columns.left, kept[OWN] + 24, _why(scene, end), "quiet", size=10.5)
    return kept, top + 50


def _why(scene: Scene, end: int) -> str:
    """Where the last token comes from, in words."""
    if scene.round.next_is_residual:
        return "all rejected: drawn from what is left"
    if scene.children[end]:
        return f"drawn from q{end}"
    return f"nothing drafted below {end}: drawn from q{end}"


def _prime(letter: str, node: int, times: int) -> str:
    return f"{letter}{node}" + (("", "\u2032", "\u2033", "\u2034")[times] if times <= 3 else f"\u2032{times}")


def _trials(scene: Scene, y: float, columns: VerdictColumns, kept: dict[int, float]) -> float:
    seen: dict[int, int] = {}
    for trial in scene.round.trials:
        parent = scene.round.nodes[trial.node].parent or 0
        times = seen.get(parent, 0)
        if y > 0 and times == 0 and seen:
            scene.canvas.line([(columns.left, y - 3), (columns.right, y - 3)], "faint")
        seen[parent] = times + 1
        _trial(scene, y, columns, trial, parent, times)
        if trial.node in scene.round.path:
            kept[trial.node] = y + 22
        y += _TRIAL
    return y


def _trial(scene: Scene, y: float, columns: VerdictColumns, trial: Trial, parent: int, times: int) -> None:
    """``q`` above ``p`` with the candidate marked, the candidate, and the outcome with its numbers below."""
    node = scene.round.nodes[trial.node]
    marked = {node.token: colour_of(node.depth)}
    data = {
        "node": trial.node, "target-prob": trial.target_prob, "draft-prob": trial.draft_prob, "chance": trial.chance,
        "uniform": trial.uniform, "accepted": trial.accepted,
    }  # fmt: skip
    group = scene.canvas.group("trial", data=data)
    _named_bar(scene, columns, y + 13, _prime("q", parent, times), trial.residual, marked, trial.target_prob)
    if trial.proposal is not None:
        _named_bar(scene, columns, y + 32, _prime("p", parent, times), trial.proposal, marked, trial.draft_prob)
    else:
        scene.canvas.text(columns.left, y + 36, "certain: p = 1", "quiet", size=SMALL)
    scene.pill(columns.candidate, y + 22, columns.pill, trial.node)
    sign, kind = ("✓", "yes") if trial.accepted else ("✗", "no")
    scene.canvas.text(columns.right - 14, y + 27, sign, kind, within=group, size=15)
    if trial.uniform is not None:
        name = "weight" if scene.trace.verifier == "traversal" else "min(1, q/p)"
        order = "<" if trial.accepted else "≥"
        words = f"u {number(trial.uniform)} {order} {number(trial.chance)} = {name}"
        scene.canvas.text(columns.left, y + 54, words, "quiet", within=group, size=10.5)


def _named_bar(
    scene: Scene, columns: VerdictColumns, y: float, name: str, given: Distribution | None, marked: dict[int, str],
    value: float | None = None,
) -> None:  # fmt: skip
    scene.canvas.text(columns.left, y + 4, name, "quiet", size=SMALL)
    listed = given if value is None else with_tokens(given, dict.fromkeys(marked, value))
    scene.bar(columns.left + _NAME, y, columns.bar, listed, marked, "bar residual")
    if value is not None:
        scene.canvas.text(columns.left + _NAME + columns.bar + 5, y + 4, number(value), "quiet", size=10.5)


def _choices(scene: Scene, y: float, columns: VerdictColumns, kept: dict[int, float]) -> float:
    """The target's choice at every node of the path, and the children that were compared with it."""
    for place, choice in enumerate(scene.round.choices):
        if place:
            scene.canvas.line([(columns.left, y - 4), (columns.right, y - 4)], "faint")
        _choice(scene, y, columns, choice)
        y += 58
        for child in scene.children[choice.node]:
            on_path = child in scene.round.path
            if scene.round.nodes[child].verdict == "not tried" and not on_path:
                continue
            scene.pill(columns.candidate, y, columns.pill, child)
            sign, kind = ("✓", "yes") if on_path else ("✗", "no")
            scene.canvas.text(columns.right - 14, y + 5, sign, kind, size=15)
            if on_path:
                kept[child] = y
            y += _CHILD
        last = place == len(scene.round.choices) - 1
        if last:
            scene.canvas.text(columns.left, y + 4, "the target's own", "quiet", size=10.5)
            scene.own_pill(columns.candidate, y, columns.pill)
            kept[OWN] = y
            y += _CHILD
        y += 4
    return y


def _choice(scene: Scene, y: float, columns: VerdictColumns, choice: Choice) -> None:
    words = scene.text(choice.token)
    noise = "" if choice.noise is None else f"\nGumbel noise {choice.noise:.6g}"
    title = f"the target's choice after node {choice.node}: {words}{noise}"
    group = scene.canvas.group("choice", title, data={"node": choice.node, "token": choice.token, "noise": choice.noise})
    given = scene.round.nodes[choice.node].target
    marked = dict.fromkeys(choice.kept, "c1") | {choice.token: "own"}
    _named_bar(scene, columns, y + 13, f"q{choice.node}", given, marked)
    room = columns.right - columns.left
    scene.canvas.text(columns.left, y + 34, shorten(f"choice {words}", room * 0.6, 12.0), within=group)
    if choice.noise is not None:
        scene.canvas.text(columns.right, y + 34, f"noise {choice.noise:.2f}", "quiet", within=group, anchor="end", size=10.5)


def draw_output(scene: Scene, x: float, width: float, kept: dict[int, float], top: float) -> float:
    """The column of output tokens, each level with its verdict where verdicts come in the order of the text.

    Returns:
        The lower edge.
    """
    scene.pill(x, top, width, 0)
    heights = [kept.get(node, 0.0) for node in (*scene.round.path, OWN)]
    ordered = all(below - above >= PILL + 4 for above, below in pairwise([top, *heights]))
    if not ordered:
        heights = [top + (place + 1) * (PILL + 8) for place in range(len(heights))]
    for node, y in zip(scene.round.path, heights, strict=False):
        scene.pill(x, y, width, node)
    scene.own_pill(x, heights[-1], width)
    for y in heights if ordered else ():
        scene.canvas.line([(x - OUTPUT_GAP + 2, y), (x - 3, y)], "line", arrow=True)
    return heights[-1]
