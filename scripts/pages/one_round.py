"""The pictures of one round, drawn from a round that the bundled pair really makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

import draftwood
from draftwood.trace.figures.canvas import PILL, Canvas
from draftwood.trace.figures.scene import children_of
from draftwood.trace.labels import number
from draftwood.trace.records import Trace

PROMPT, SEED, SHAPE = "Once upon a time", 3, "3x3"
ROUND = 5  # counted from 0: one that rejects a sibling, accepts the next one and ends with a token of the target's own
_PILL, _STEP, _ROW, _TOP = 62, 84, 54, 96  # width of a token; from level to level; from node to node; the first row
_LOOKS: Final = {"root": "c3", "accepted": "c3", "rejected": "c2", "not tried": "plain"}


def recorded(pair: draftwood.Pair) -> Trace:
    """The example text with its rounds, without their times."""
    method = draftwood.Method(method="rsd-s", shape=SHAPE)
    trace = pair.generate(PROMPT, seed=SEED, max_new_tokens=24, method=method, trace=True).trace
    assert trace is not None
    return replace(trace, rounds=[replace(made, seconds={}, end=0.0) for made in trace.rounds])


def draw(trace: Trace) -> str:
    """Draft, target, verify, output: from left to right."""
    return _Picture(trace).drawn()


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


@final
class _Picture:
    """The round on a canvas."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.made = trace, trace.rounds[ROUND]
        words = f"The target scores {len(self.made.nodes) - 1} drafted tokens in one forward pass; "
        words += f"{len(self.made.tokens)} tokens are kept."
        self.canvas = Canvas("One round of speculative decoding with a draft tree", words, "dw-one-round")
        self.rows = _rows(children_of(self.made))

    def drawn(self) -> str:
        """The file."""
        canvas, new = self.canvas, self.made.tokens
        bottom = _TOP - 12 + max((max(self.rows) + 1) * _ROW, len(self.made.nodes) * 30 + 22)
        for left, head, says in (
            (24, "1  draft", "a small model grows a tree"),
            (388, "2  target", "one forward scores every node"),
            (596, "3  verify", "keep one path: the target's own distribution"),
            (948, "4  output", f"{len(new)} tokens, 1 forward"),
        ):
            canvas.text(left, 34, head, "head-line", size=15)
            canvas.text(left, 54, says, "note")
        self._tree(24, verified=False)
        self._target(388, bottom)
        self._tree(596, verified=True)
        for row, token in enumerate(new):
            last = row == len(new) - 1
            self._token(948, _TOP + row * _ROW, 82, token, "own" if last else "c3")
            canvas.text(989, _TOP + 28 + row * _ROW, "drawn from q" if last else "", "note", anchor="middle")
        canvas.line([(989, bottom + 8), (989, bottom + 30), (55, bottom + 30), (55, bottom + 10)], arrow=True)
        said = f"feedback: {self._text(new[-1])!r} is the next root"
        canvas.text(520, bottom + 50, said, "note", anchor="middle")
        return canvas.finish(1084, bottom + 66)

    def _text(self, token: int) -> str:
        return self.trace.texts[token].strip()

    def _token(self, x: float, y: float, width: float, token: int, kind: str) -> None:
        group = self.canvas.group("accepted" if kind == "c3" else "token")
        self.canvas.rect(x, y - PILL / 2, width, PILL, f"pill {kind}", within=group, radius=PILL / 2)
        self.canvas.text(x + width / 2, y + 4, self._text(token), within=group, anchor="middle")

    def _tree(self, left: float, *, verified: bool) -> None:
        places = [(left + one.depth * _STEP, _TOP + row * _ROW) for one, row in zip(self.made.nodes, self.rows, strict=True)]
        for one, (x, y) in zip(self.made.nodes, places, strict=True):
            self._token(x, y, _PILL, one.token, _LOOKS[one.verdict] if verified else "plain")
            if one.parent is None:
                continue
            px, py = places[one.parent]
            kept = verified and one.verdict == "accepted"
            self.canvas.line([(px + _PILL, py), (x, y)], "path" if kept else "line")
            if not verified and one.draft_prob is not None:
                self.canvas.text(x + _PILL / 2, y + 25, f"p {number(one.draft_prob)}", "quiet", anchor="middle")
            elif verified and one.verdict != "not tried":
                sign, look = ("✓", "yes") if kept else ("✗", "no")
                self.canvas.text(x + _PILL / 2, y + 26, sign, look, anchor="middle")

    def _target(self, left: float, bottom: float) -> None:
        """Every node, in the order in which the target reads them, with the probability that it gives to it."""
        group = self.canvas.group("target-model")
        self.canvas.rect(left - 10, _TOP - 24, 180, bottom - _TOP + 24, "sbs", within=group, radius=10)
        for place, one in enumerate(self.made.nodes):
            y = _TOP + 4 + place * 30
            self.canvas.text(left, y, self._text(one.token), within=group)
            if one.target_prob is None:
                self.canvas.text(left + 66, y, "root", "quiet", within=group)
            else:
                self.canvas.rect(left + 66, y - 10, max(1.0, 44 * one.target_prob), 11, "own", within=group, radius=2)
                self.canvas.text(left + 160, y, f"q {number(one.target_prob)}", "quiet", within=group, anchor="end")
