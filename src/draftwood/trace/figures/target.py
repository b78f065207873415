"""The middle of figure 1: the target reads all nodes at once and gives a distribution after each of them."""

from __future__ import annotations

from typing import Final

from draftwood.trace.figures.canvas import SMALL
from draftwood.trace.figures.scene import Scene, colour_of, with_tokens
from draftwood.trace.labels import mono_width, shorten

BOX: Final = 34.0  # width of the target
NAME: Final = 30.0  # "q12" in front of a distribution
_ARROW: Final = 16.0


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
