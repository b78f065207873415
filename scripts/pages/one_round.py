"""The picture of one round, drawn from a round that the bundled pair really makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import draftwood
from scripts.pages.svg import box, line, picture, text

PROMPT, SEED, SHAPE = "Once upon a time", 3, "3x3"
ROUND = 5  # counted from 0: one that rejects a sibling, accepts the next one and ends with a token of the target's own
_PILL, _STEP, _ROW = 62, 84, 54  # width of a token; from level to level; from node to node
_TOP = 84


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of the tree: its token, its place in the drawing, and what the round made of it.

    Attributes:
        token: its text.
        parent: the number of its parent.
        column, row: its place; the root has column 0.
        draft, target: the probabilities that both models give to it at its parent; None at the root.
        fate: ``accepted``, ``rejected``, or ``untried``.
    """

    token: str
    parent: int
    column: int
    row: float
    draft: float | None
    target: float | None
    fate: str


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A round, ready to be drawn: the nodes, the root first, and the tokens that it committed."""

    nodes: list[Node]
    committed: list[str]


def shown(pair: draftwood.Pair) -> Shown:
    """Round :data:`ROUND` of the example text."""
    method = draftwood.Method(method="rsd-s", shape=SHAPE)
    for number, piece in enumerate(pair.stream(PROMPT, seed=SEED, max_new_tokens=24, method=method)):
        if number == ROUND:
            return _shown(piece.round, pair.tokenizer)
    raise ValueError(f"the text ended before round {ROUND}: choose another seed")


def _shown(made: draftwood.Round, tokenizer: Any) -> Shown:
    tree, words = made.tree, made.tree.host.tokens[0]
    draft, target = tree.draft_logp, made.target.settled.dense()
    assert draft is not None
    fates, rows = _fates(tree.children[0], made.paths[0]), _rows(tree.children[0])
    nodes = []
    for node, token in enumerate(words):
        parent = tree.host.parents[0][node]
        nodes.append(
            Node(
                token=tokenizer.decode([token]),
                parent=parent,
                column=int(tree.depths[0, node]),
                row=rows[node],
                draft=None if node == 0 else float(draft[0, parent, token].exp()),
                target=None if node == 0 else float(target[0, parent, token].exp()),
                fate=fates.get(node, "untried"),
            )
        )
    return Shown(nodes=nodes, committed=[tokenizer.decode([token]) for token in made.tokens[0]])


def _fates(children: list[list[int]], path: list[int]) -> dict[int, str]:
    """Siblings are tried in draw order, until one is accepted."""
    fates, node = {0: "accepted"}, 0
    for accepted in path:
        for child in children[node]:
            fates[child] = "accepted" if child == accepted else "rejected"
            if child == accepted:
                break
        node = accepted
    return {**fates, **dict.fromkeys(children[node], "rejected")}


def _rows(children: list[list[int]]) -> list[float]:
    """Leaves lie one below the other; a node lies level with the middle of its children."""
    rows, leaves = [0.0] * len(children), 0

    def place(node: int) -> float:
        nonlocal leaves
        if not children[node]:
            rows[node] = float(leaves)
            leaves += 1
        else:
            below = [place(child) for child in children[node]]
            rows[node] = (below[0] + below[-1]) / 2
        return rows[node]

    place(0)
    return rows


def draw(made: Shown) -> str:
    """Draft, target, verify, output: from left to right."""
    leaves = int(max(node.row for node in made.nodes)) + 1
    bottom = max(_TOP + leaves * _ROW, _TOP + len(made.nodes) * 30 + 22)
    new = made.committed
    parts = [
        text(24, 34, "1  draft", "title"),
        text(24, 54, "a small model grows a tree", "small quiet"),
        *_tree(made, 24, verified=False),
        text(388, 34, "2  target", "title"),
        text(388, 54, "one forward scores every node", "small quiet"),
        *_target(made, 388, bottom),
        text(596, 34, "3  verify", "title"),
        text(596, 54, "keep one path: the target's own distribution", "small quiet"),
        *_tree(made, 596, verified=True),
        text(948, 34, "4  output", "title"),
        text(948, 54, f"{len(new)} tokens, 1 forward", "small quiet"),
        *_output(made, 948),
        line([(989, bottom + 8), (989, bottom + 30), (55, bottom + 30), (55, bottom + 10)], arrow=True),
        text(520, bottom + 50, f"feedback: {new[-1].strip()!r} is the next root", "small quiet middle"),
    ]
    words = f"The target scores {len(made.nodes) - 1} drafted tokens in one forward pass; {len(new)} tokens are kept."
    return picture(1084, bottom + 66, "One round of speculative decoding with a draft tree", words, parts)


def _short(probability: float) -> str:
    return f"{probability:.2f}" if probability >= 0.005 else "<0.01"


def _place(node: Node, left: float) -> tuple[float, float]:
    return left + node.column * _STEP, _TOP + node.row * _ROW


def _tree(made: Shown, left: float, *, verified: bool) -> list[str]:
    parts = []
    for node in made.nodes[1:]:
        (x, y), (px, py) = _place(node, left), _place(made.nodes[node.parent], left)
        kept = verified and node.fate == "accepted"
        parts.append(line([(px + _PILL, py + 12), (x, y + 12)], "line path" if kept else "line"))
    looks = {"accepted": "good", "rejected": "bad", "untried": "pill"}
    for node in made.nodes:
        x, y = _place(node, left)
        parts.append(box(x, y, _PILL, 24, looks[node.fate] if verified else "pill", 12))
        parts.append(text(x + _PILL / 2, y + 16.5, node.token.strip(), "code middle"))
        if node.draft is None:
            continue
        if not verified:
            parts.append(text(x + _PILL / 2, y + 37, f"p {_short(node.draft)}", "small quiet middle"))
        elif node.fate != "untried":
            sign, look = ("✓", "yes") if node.fate == "accepted" else ("✗", "no")
            parts.append(text(x + _PILL / 2, y + 38, sign, f"middle {look}"))
    return parts


def _target(made: Shown, left: float, bottom: float) -> list[str]:
    """Every node, in the order in which the target reads them, with the probability that it gives to it."""
    parts = [box(left - 10, _TOP - 12, 180, bottom - _TOP + 12, "box", 10)]
    for number, node in enumerate(made.nodes):
        y = _TOP + number * 30
        parts.append(text(left, y + 16, node.token.strip(), "code"))
        if node.target is None:
            parts.append(text(left + 66, y + 16, "root", "small quiet"))
        else:
            parts.append(box(left + 66, y + 6, max(1.0, 50 * node.target), 11, "own", 2))
            parts.append(text(left + 160, y + 16, f"q {_short(node.target)}", "small quiet end"))
    return parts


def _output(made: Shown, left: float) -> list[str]:
    parts = []
    for number, token in enumerate(made.committed):
        last, y = number == len(made.committed) - 1, _TOP + number * _ROW
        parts.append(box(left, y, 82, 24, "own" if last else "good", 12))
        parts.append(text(left + 41, y + 16.5, token.strip(), "code middle"))
        if last:
            parts.append(text(left + 41, y + 40, "drawn from q", "small quiet middle"))
    return parts
