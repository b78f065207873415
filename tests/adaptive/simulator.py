"""Decoding on a simulated clock: made-up costs and texts, the production ``Controller``, and every fixed choice next to it.

A text is a row of positions. At each of them the draft gives its best children conditional probabilities, and the target's
choice falls on one of them or on none. Trees, accepted tokens and seconds follow from that, for the controller and for every
fixed choice alike, so that both decode the very same text. The controller is given noisy seconds; what it did is scored by
the seconds without their noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from weakref import WeakKeyDictionary

import numpy as np

from draftwood.draft.adaptive.expand import AcceptanceModel

_ACCEPTANCE = WeakKeyDictionary()  # what a drafter with it has learnt
DEPTH, WIDTH, NODES, CHILDREN = 8, 4, 24, 3
FIXED_DEPTHS, FIXED_NODES = (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 8, 12, 16, 20, 24)


@dataclass(frozen=True, kw_only=True)
class World:
    """What forwards take, in milliseconds of the target's forward for one token, which is 10."""

    base: float = 10.0
    tree: float = 2.0  # any tree at all
    node: float = 0.2
    level: float = 2.0
    opening: float = 0.0  # of the first level, beyond a later one's
    frontier_node: float = 0.1
    change: float = 0.0  # another number of nodes than in the round before
    block: tuple[int, float] = (0, 0.0)  # for every full block of so many nodes
    read: float = 0.05  # of a level, per token that the draft has not read yet
    first: float = 0.0  # once, where a number of nodes comes up first
    noise: float = 0.1  # standard deviation of the logarithm
    outliers: float = 0.0  # share of rounds that take 8 times as long
    slow: Callable[[float], float] = lambda share: 1.0  # by the share of the text that is written
    slow_draft: Callable[[float], float] = lambda share: 1.0  # for the draft alone

    def target(self, nodes, changed):
        """Seconds of a round apart from its levels; ``nodes`` without the root."""
        if not nodes:
            return 1e-3 * (self.base + self.change * changed)
        size, price = self.block
        blocks = (nodes // size) * price if size else 0.0
        return 1e-3 * (self.base + self.tree + self.node * nodes + blocks + self.change * changed)

    def draft(self, depth, frontier):
        return 1e-3 * (self.level + self.opening * (not depth) + self.frontier_node * (frontier - 1))


@dataclass(frozen=True, kw_only=True)
class Text:
    """Per position: what the draft claims of its children, their true probabilities, and the child that comes.

    Attributes:
        scores, uncertainty: as :class:`AcceptanceModel` reads them.
        probabilities: of each child, that the target's choice falls on it.
        comes: the child that it falls on; -1 for none.
        guess: tokens that prompt lookup guesses rightly from here; -1 where it guesses nothing.
        chance: of each guessed token.
    """

    scores: list[list[float]]
    uncertainty: list[float]
    probabilities: np.ndarray
    comes: np.ndarray
    guess: np.ndarray | None = None
    chance: float = 0.0

    def __len__(self):
        return len(self.scores) - DEPTH - 1


def text(seed, likely, *, length=4000, doubt=0.0, guessed=None, chance=0.93):
    """A text whose first children have about this probability, by the share of the text before them.

    The acceptance model's first weights are right about it, but for ``doubt``: the larger, the seldomer any child comes.
    """
    rng = np.random.default_rng(seed)
    n = length + DEPTH + 1
    mean = np.array([likely(i / length) for i in range(n)]).clip(0.01, 0.97)
    first = rng.beta(4 * mean, 4 * (1 - mean)).clip(0.003, 0.985)
    rest = 1.0 - first
    of_child = np.stack([first, rest * 0.3, rest * 0.12], axis=-1)
    gap, rank, none, spread = AcceptanceModel().weights
    assert gap == 1.0
    scores = (np.log(of_child) - rank * np.log(np.arange(1, 1 + CHILDREN))).tolist()
    scores = [sorted((s - node[0] for s in node), reverse=True) for node in scores]
    uncertainty = ((np.log(rest * 0.58 / first) - none) / spread).clip(0.0).tolist()
    truth = AcceptanceModel()
    truth.weights[2] += doubt
    probabilities = np.exp([truth.log_probs(s, u)[:-1] for s, u in zip(scores, uncertainty, strict=True)])
    comes = (rng.random((n, 1)) > probabilities.cumsum(1)).sum(1)
    comes = np.where(comes < CHILDREN, comes, -1)
    run, guess = 0, np.full(n, -1)
    for i in range(n - 1, -1, -1):
        run = run + 1 if rng.random() < chance else 0
        guess[i] = min(run, NODES) if guessed is not None and guessed(i / length) else -1
    return Text(scores=scores, uncertainty=uncertainty, probabilities=probabilities, comes=comes, guess=guess, chance=chance)


@dataclass
class Outcome:
    """What a run wrote: tokens per second after the warm-up, and in the whole."""

    speed: float
    whole: float


WARM_UP = 0.1  # of the text


def score(marks, length):
    """Tokens per second after the warm-up and in the whole, of (position, seconds so far) after each round."""
    begin = next(i for i, (at, _) in enumerate(marks) if at >= WARM_UP * length)
    (at, spent), (end, total) = marks[begin], marks[-1]
    return (end - at) / (total - spent), end / total


def steer(controller, world, written, seed=0):
    """Decode the text with the controller."""
    rng, at, total, last, behind = random.Random(seed), 0, 0.0, 0, 0
    marks, met = [(0, 0.0)], {0}
    acceptance = _ACCEPTANCE.setdefault(controller, AcceptanceModel())
    while at < len(written):
        place = at / len(written)
        slow, slow_draft = world.slow(place), world.slow(place) * world.slow_draft(place)

        def noisy(seconds):
            factor = rng.lognormvariate(0.0, world.noise) if world.noise else 1.0
            return seconds * factor * (8.0 if rng.random() < world.outliers else 1.0)

        plain = controller.begin_round()
        guess = [] if plain else _guess(written, at)
        if guess and not controller.shows_guess([guess]):
            guess = []
        values = list(accumulate(guess, mul))
        nodes = [(v, d + 1, -2) for d, v in enumerate(values)]  # value, depth, is it right
        nodes = [(v, d, 1 if d <= written.guess[at] else -1) for v, d, _ in nodes] if guess else []
        frontier, depth, drafting, exact = [(1.0 - (guess[0] if guess else 0.0), 1)], 0, 0.0, 0.0
        while not plain and frontier and depth < DEPTH:
            above = math.fsum(v for v, _ in frontier)
            if not controller.another_level(depth, above, len(frontier)):
                if depth:
                    controller.refuse_level(depth, above)
                break
            seconds = world.draft(depth, len(frontier)) * slow_draft
            if behind:
                seconds += 1e-3 * world.level * world.read * behind * slow_draft
            comes = written.comes[at + depth]
            node = written.scores[at + depth], written.uncertainty[at + depth]
            here = [math.exp(share) for share in acceptance.log_probs(*node)[:-1]]
            grown = [(v * s, on and k == comes) for v, on in frontier for k, s in enumerate(here)]
            grown.sort(reverse=True)
            nodes += [(v, depth + 1, 1 if on else -1) for v, on in grown]
            nodes.sort(key=lambda node: -node[0])
            measured = noisy(seconds)
            values = [v for v, _, _ in nodes[:NODES]]
            controller.end_level(depth, above, values, len(frontier), None if behind else measured)
            drafting, exact, behind, depth = drafting + measured, exact + seconds, 0, depth + 1
            low = controller.min_frontier_value(depth, WIDTH)
            frontier = [(v, on) for i, (v, on) in enumerate(grown[:WIDTH]) if not i or v >= low]
        nodes.sort(key=lambda node: -node[0])
        size = controller.tree_size([v for v, _, _ in nodes[:NODES]]) if nodes else 0
        kept = nodes[:size]
        accepted = max((d for _, d, right in kept if right == 1), default=0)
        seconds = world.target(size, size != last) * slow
        if size not in met:
            met.add(size)
            seconds += 1e-3 * world.first
        for reached in range(min(depth, accepted + 1)):
            comes, node = written.comes[at + reached], (written.scores[at + reached], written.uncertainty[at + reached])
            acceptance.learn(*node, int(comes) if comes >= 0 else CHILDREN)
        measured = noisy(seconds) + drafting
        total += exact + seconds
        controller.end_round(1 + size, 1.0 + accepted, drafting, measured)
        at += 1 + accepted
        behind, last = (0 if depth else behind + 1 + accepted), size
        marks.append((at, total))
    return Outcome(*score(marks, len(written)))


def _guess(written, at):
    if written.guess is None or written.guess[at] < 0:
        return []
    return [written.chance] * 12


@dataclass(frozen=True)
class Fixed:
    """A fixed choice: depth and nodes of every tree; 0 and 0 is plain decoding."""

    depth: int
    nodes: int


def fixed(world, written):
    """Every fixed choice on the same text."""
    yield Fixed(0, 0), walk(world, written, 0, 0, np.zeros(len(written), dtype=int))
    for (depth, nodes), accepted in accepted_by_choice(written).items():
        yield Fixed(depth, nodes), walk(world, written, depth, nodes, accepted)


def walk(world, written, depth, nodes, accepted):
    at, total, marks, tokens = 0, 0.0, [(0, 0.0)], accepted.tolist()
    draft = sum(world.draft(d, min(WIDTH, max(1, nodes)) if d else 1) for d in range(depth))
    target, length = world.target(nodes, False), len(written)
    while at < length:
        place = at / length
        slow = world.slow(place)
        total += target * slow + draft * slow * world.slow_draft(place)
        at += 1 + tokens[at]
        marks.append((at, total))
    return Outcome(*score(marks, length))


def accepted_by_choice(written):
    """Accepted tokens at every position, were a round to begin there, of every fixed choice."""
    length = len(written)
    shares = written.probabilities
    values, right = np.ones((length, 1)), np.ones((length, 1), dtype=bool)
    all_values, path_values, out = [], [], {}
    rows = np.arange(length)[:, None]
    for depth in range(DEPTH):
        here, comes = shares[depth : depth + length], written.comes[depth : depth + length]
        grown = (values[:, :, None] * here[:, None, :]).reshape(length, -1)
        on = (right[:, :, None] & (np.arange(CHILDREN) == comes[:, None])[:, None, :]).reshape(length, -1)
        all_values.append(grown)
        path_values.append(np.where(on, grown, 0.0).max(1))
        order = np.argsort(-grown, axis=1, kind="stable")[:, :WIDTH]
        values, right = grown[rows, order], on[rows, order]
        if depth + 1 in FIXED_DEPTHS:
            pool = np.concatenate(all_values, axis=1)
            for nodes in FIXED_NODES:
                if nodes < depth + 1 or nodes > pool.shape[1]:
                    continue
                kept = -np.partition(-pool, nodes - 1, axis=1)[:, nodes - 1]
                out[depth + 1, nodes] = sum((p >= kept) & (p > 0) for p in path_values)
    return out


def best_fixed(world, written):
    """The fastest fixed choice, its speed, and that of plain decoding."""
    runs = {choice: outcome.speed for choice, outcome in fixed(world, written)}
    best = max(runs, key=lambda choice: runs[choice])
    return best, runs[best], runs[Fixed(0, 0)]
