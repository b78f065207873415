"""What all parts of the figure of a round share: the round, its tree by levels, and how a token and a distribution look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

from draftwood.trace.figures.canvas import SMALL, Canvas
from draftwood.trace.labels import shorten, token_text
from draftwood.trace.records import Distribution, Trace, TracedRound, Trial

PITCH: Final = 34.0  # from row to row
BAR: Final = 14.0  # height of a probability bar
_COLOURS: Final = 6


@final
@dataclass(frozen=True)
class Scene:
    """A round and the canvas on which it is drawn."""

    trace: Trace
    round: TracedRound
    canvas: Canvas

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each node, in draw order."""
        return children_of(self.round)

    @property
    def beam(self) -> bool:
        """Whether children were chosen among all candidates of a level at once."""
        return self.trace.method == "rsd-s"

    @cached_property
    def levels(self) -> list[list[int]]:
        """Node numbers by depth."""
        nodes = self.round.nodes
        return [[n for n, node in enumerate(nodes) if node.depth == d] for d in range(max(node.depth for node in nodes) + 1)]

    @cached_property
    def trials(self) -> dict[int, Trial]:
        """The test of each node that was tested."""
        return {trial.node: trial for trial in self.round.trials}

    def inputs(self, depth: int) -> list[int]:
        """Nodes of a level that the draft model read. A stochastic beam reads whole levels; of others it is known of nodes
        with a distribution or with children."""
        if self.beam and depth + 1 < len(self.levels):
            return self.levels[depth]
        return [n for n in self.levels[depth] if self.children[n] or self.round.nodes[n].draft is not None]

    def text(self, token: int) -> str:
        return token_text(self.trace, token)

    def title(self, node: int) -> str:
        """All numbers of a node, one a line."""
        item, trial = self.round.nodes[node], self.trials.get(node)
        lines = [f"node {node}: {self.text(item.token)} (token {item.token})"]
        if item.draft_prob is not None:
            lines.append(f"draft p = {item.draft_prob:.6g}")
        if item.target_prob is not None:
            lines.append(f"target q = {item.target_prob:.6g}")
        if item.draft_prob and item.target_prob is not None:
            lines.append(f"ratio q/p = {item.target_prob / item.draft_prob:.6g}")
        if trial is not None:
            numbers = {
                "q at the trial": trial.target_prob, "p at the trial": trial.draft_prob,
                "weight" if self.trace.verifier == "traversal" else "chance to accept": trial.chance,
                "uniform number": trial.uniform,
            }  # fmt: skip
            lines += [f"{name} = {value:.6g}" for name, value in numbers.items() if value is not None]
        return "\n".join([*lines, f"verdict: {item.verdict}"])

    def pill(self, x: float, y: float, width: float, node: int) -> None:
        """A node of the tree: its number and its token, around the height ``y``."""
        item, trial = self.round.nodes[node], self.trials.get(node)
        fate = {"not tried": "untried"}.get(item.verdict, item.verdict)
        data = {
            "node": node, "token": item.token, "verdict": item.verdict, "target-prob": item.target_prob,
            "draft-prob": item.draft_prob, "chance": None if trial is None else trial.chance,
            "uniform": None if trial is None else trial.uniform,
        }  # fmt: skip
        group = self.canvas.group(f"node {fate}", self.title(node), data=data)
        colour = "plain" if item.depth == 0 else colour_of(item.depth)
        self.canvas.pill(x, y, width, str(node), self.text(item.token), colour, within=group)

    def own_pill(self, x: float, y: float, width: float) -> None:
        """The round's last token: the target's own."""
        made = self.round
        source = "the residual of the target's distribution" if made.next_is_residual else "the target's distribution"
        title = f"{self.text(made.next_token)} (token {made.next_token})\nthe target's own token, from {source}"
        group = self.canvas.group("node own-token", title, data={"token": made.next_token, "verdict": "own"})
        self.canvas.pill(x, y, width, str(len(made.nodes)), self.text(made.next_token), "own", within=group)

    def bar(
        self, x: float, y: float, width: float, given: Distribution | None, marked: Mapping[int, str], name: str = "bar"
    ) -> None:
        """A distribution around the height ``y``: a segment for each token, the rest left empty."""
        if given is None:
            self.canvas.text(x, y + 4, "none", "quiet", size=SMALL)
            return
        lines = [f"{self.text(t)}  {p:.6g}" for t, p in zip(given.tokens, given.probs, strict=True)]
        title = "\n".join([*lines, f"all others  {given.rest:.6g}"])
        data = {"tokens": " ".join(map(str, given.tokens)), "probs": " ".join(f"{prob:.6g}" for prob in given.probs)}
        group = self.canvas.group(name, title, data=data)
        self.canvas.rect(x, y - BAR / 2, width, BAR, "frame", within=group)
        left = x
        for rank, (token, prob) in enumerate(zip(given.tokens, given.probs, strict=True)):
            wide = min(width * prob, x + width - left)
            if wide >= 0.8:
                kind = marked.get(token, "part" if rank % 2 == 0 else "part2")
                self.canvas.rect(left, y - BAR / 2, wide, BAR, kind, within=group)
                words = shorten(self.text(token), wide - 4, SMALL)
                if wide >= 12 and words != "…":
                    self.canvas.text(left + wide / 2, y + 4, words, within=group, anchor="middle", size=SMALL)
            left += wide


def with_tokens(given: Distribution | None, more: Mapping[int, float | None]) -> Distribution | None:
    """A distribution that also lists these tokens, with the probabilities that the trace has of them."""
    if given is None:
        return None
    extra = {token: prob for token, prob in more.items() if prob is not None and token not in given.tokens}
    rest = max(0.0, given.rest - sum(extra.values()))
    return Distribution(tokens=[*given.tokens, *extra], probs=[*given.probs, *extra.values()], rest=rest)


def children_of(made: TracedRound) -> list[list[int]]:
    """Children of each node, in draw order, as nodes are numbered."""
    below: list[list[int]] = [[] for _ in made.nodes]
    for number, node in enumerate(made.nodes):
        if node.parent is not None:
            below[node.parent].append(number)
    return below


def drafted_chain(made: TracedRound) -> list[int]:
    """A chain through the tree: the accepted path, the first token rejected after it, and what hangs below that."""
    chain, children = list(made.path), children_of(made)
    while below := children[chain[-1] if chain else 0]:
        chain.append(below[0])
    return chain


def colour_of(depth: int) -> str:
    """The colour of what iteration ``depth`` drafted."""
    return f"c{(depth - 1) % _COLOURS}"
