"""Best-first shared-noise trees: the most valuable nodes under a budget, with one draft forward per level.

The value of a child estimates the probability that the target's choice falls on it, given the shared noise
(:class:`Foresight`, learnt from round to round); a node's value is the product along its path. Any tree is legal here,
since the verifier only matches. At temperature 0 the noise is zero; EAGLE-2 (arXiv 2406.16858) takes the draft's
probability itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.draft.foresight import Foresight
from draftwood.draft.pace import Pace
from draftwood.draft.shared_noise import shared_scores
from draftwood.models import Runner
from draftwood.noise import Choices
from draftwood.rounds import Round
from draftwood.sampling import Law
from draftwood.tree import DraftTree, Draw

_NEVER = -float("inf")


class Grown(NamedTuple):
    """The best children of a candidate: tokens, perturbed log-probabilities, and the doubt of the draft."""

    tokens: list[int]
    scores: list[float]
    doubt: float


@final
class Pool:
    """One row's candidates on the host, in the order in which they came; candidate 0 is the root, parents come first.

    Attributes:
        tokens, parents, depths: as in a tree.
        values: log of the estimated probability that the text runs through the candidate.
        numbers: the draft runner's number of each candidate that it has scored.
        grown: what was known of a candidate's children when they were made.
    """

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.depths, self.values = [root], [0], [0], [0.0]
        self.numbers: dict[int, int] = {}
        self.grown: dict[int, Grown] = {}

    def add(self, parent: int, tokens: Sequence[int], shares: Sequence[float]) -> None:
        """Children of a candidate, with the logs of their shares of its value."""
        for token, share in zip(tokens, shares, strict=False):  # the last share is that of no child at all
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
            self.values.append(self.values[parent] + share)

    def front(self, since: int, width: int, nodes: int) -> list[int]:
        """The best ``width`` of the candidates that came after ``since``, if they are among the ``nodes`` best of all."""
        enough = sorted(self.values, reverse=True)[: nodes + 1][-1]
        new = sorted(range(since, len(self.values)), key=lambda i: -self.values[i])[:width]
        return [i for i in new if self.values[i] >= enough]

    def path(self, candidate: int) -> list[int]:
        """From below the root to the candidate."""
        out: list[int] = []
        while candidate:
            out.append(candidate)
            candidate = self.parents[candidate]
        return out[::-1]

    def best(self, nodes: int, least: float) -> list[int]:
        """The root and the ``nodes`` most valuable candidates worth at least ``least``, parents first: a child is never
        worth more than its parent, and the order is stable."""
        order = sorted(range(len(self.values)), key=lambda i: -self.values[i])[: nodes + 1]
        return sorted(i for i in order if i == 0 or math.exp(self.values[i]) >= least)


@final
class BestFirst:
    """Keeps the ``nodes`` most valuable nodes of a tree grown ``width`` nodes a level down to ``length``, and with a pace
    only as much of it as pays: fewer nodes, fewer levels, or no draft at all.

    Args:
        runner: the draft model.
        nodes: the node budget, the root not counted.
        width: nodes expanded per level.
        length: the depth budget.
        fan: candidates considered per node.
        pace: what drafting costs and brings; without one the budgets are filled every round.
    """

    name = "shared-noise"
    draw = Draw.SHARED_NOISE

    def __init__(
        self, runner: Runner, *, nodes: int, width: int, length: int, fan: int = 6, pace: Pace | None = None
    ) -> None:
        self.runner = runner
        self.nodes = nodes
        self.width = width
        self.length = length
        self.fan = fan
        self.foresight = Foresight(fan)
        self.pace = pace
        self._drafting = 0.0  # seconds of this round
        self._reading = True  # the first round reads the prompt, which says nothing about costs
        self._behind = True  # the draft has text to read that was committed while nothing was drafted
        self._pools: list[Pool] = []
        self._kept: list[list[int]] = []  # per row, the candidate that each tree node is

    @property
    def max_length(self) -> int | None:
        return self.runner.max_length

    @property
    def forward_seconds(self) -> float:
        return self.runner.forward_seconds

    def start(self, texts: Sequence[Sequence[int]]) -> None:
        self.runner.start(texts)
        self._reading = self._behind = True

    def select(self, rows: Sequence[int]) -> None:
        self.runner.select(rows)

    def draft(self, root: Int[Tensor, "row"], law: Law, choices: Choices, limits: Sequence[int]) -> DraftTree:
        start = perf_counter()
        pools = [Pool(token) for token in root.tolist()]
        fronts = [[0] if limit > 0 else [] for limit in limits]
        seen = 0
        for depth in range(self.length):
            if not any(fronts) or not self._pays(pools, fronts, depth):
                break
            since = [len(pool.values) for pool in pools]
            began = perf_counter()
            seen = self._expand(pools, fronts, seen, law, choices, depth)
            self._learn_cost(pools, fronts, since, depth, perf_counter() - began)
            self._behind = False
            fronts = [
                pool.front(first, self.width, self.nodes) if depth + 1 < limit else []
                for pool, first, limit in zip(pools, since, limits, strict=True)
            ]
            for pool, front, stops in zip(pools, fronts, law.stops, strict=True):
                front[:] = [i for i in front if pool.tokens[i] not in stops]  # nothing follows the end of the text
        tree = self._prune(pools, root.device, law.sampling.greedy)
        self._drafting = perf_counter() - start
        return tree

    def _pays(self, pools: list[Pool], fronts: list[list[int]], depth: int) -> bool:
        return self.pace is None or self.pace.worth(depth, _worth(pools, fronts))

    def _learn_cost(self, pools: list[Pool], fronts: list[list[int]], since: list[int], depth: int, seconds: float) -> None:
        if self.pace is not None:
            new = [pool.front(first, self.nodes, self.nodes) for pool, first in zip(pools, since, strict=True)]
            gain = _worth(pools, new, self.pace.least_value())
            self.pace.grew(depth, _worth(pools, fronts), gain, None if self._behind else seconds)

    def _expand(self, pools: list[Pool], fronts: list[list[int]], seen: int, law: Law, choices: Choices, depth: int) -> int:
        """Score the fronts and put their best children into the pools; returns the nodes that the runner has seen."""
        n, device = max(map(len, fronts)), self.runner.device
        lineage = np.zeros((len(pools), n, seen + n), dtype=np.bool_)
        lineage[:, range(n), range(seen, seen + n)] = True
        for row, (pool, front) in enumerate(zip(pools, fronts, strict=True)):
            for i, candidate in enumerate(front):
                pool.numbers[candidate] = seen + i
                lineage[row, i, [pool.numbers[a] for a in (0, *pool.path(candidate))]] = True
        tokens = [
            [pool.tokens[i] for i in front] + [0] * (n - len(front)) for pool, front in zip(pools, fronts, strict=True)
        ]
        logits = self.runner.extend(
            torch.tensor(tokens, device=device),
            torch.full((len(pools), n), depth, device=device),
            torch.from_numpy(lineage).to(device),
        )
        logp = law.draft(logits, lambda: _prefixes(pools, fronts, n))
        best = shared_scores(logp, choices, depth).topk(min(self.fan, logp.shape[-1]), dim=-1)
        tokens, scores, surest = best.indices.tolist(), best.values.tolist(), logp.amax(-1).tolist()  # host sync
        for row, (pool, front) in enumerate(zip(pools, fronts, strict=True)):
            for i, candidate in enumerate(front):
                possible = sum(score > _NEVER for score in scores[row][i])  # neither -inf nor NaN, and those stand last
                if possible:
                    grown = Grown(tokens[row][i][:possible], scores[row][i][:possible], -surest[row][i])
                    pool.grown[candidate] = grown
                    pool.add(candidate, grown.tokens, self.foresight.log_shares(grown.scores, grown.doubt))
        return seen + n

    def _prune(self, pools: list[Pool], device: torch.device, greedy: bool) -> DraftTree:
        least = 0.0 if self.pace is None else self.pace.least_value()
        kept = [pool.best(self.nodes, least) for pool in pools]
        self._pools, self._kept = pools, kept
        size = max(map(len, kept))
        # Planes of numbers per node: token, parent, depth, and whether the place holds a node.
        planes = np.zeros((4, len(pools), size), dtype=np.int64)
        ancestors = np.zeros((len(pools), size, size), dtype=np.bool_)
        ancestors[:, range(size), range(size)] = True
        for row, (pool, nodes) in enumerate(zip(pools, kept, strict=True)):
            place = {candidate: i for i, candidate in enumerate(nodes)}
            for i, candidate in enumerate(nodes):
                parent = place[pool.parents[candidate]]
                planes[:, row, i] = pool.tokens[candidate], parent, pool.depths[candidate], 1
                ancestors[row, i] |= ancestors[row, parent]
        tokens, parents, depths, valid = torch.from_numpy(planes).to(device)
        return DraftTree(
            tokens=tokens,
            parents=parents,
            depths=depths,
            valid=valid.bool(),
            ancestors=torch.from_numpy(ancestors).to(device),
            branching=self.fan,
            draw=Draw.POINT_MASS if greedy else self.draw,
        )

    def commit(self, this_round: Round) -> None:
        tokens = this_round.tree.lists[0]
        seen, rest = [], []
        for row, (path, pool, kept) in enumerate(zip(this_round.paths, self._pools, self._kept, strict=True)):
            chain = [0, *path]
            numbers = [pool.numbers.get(kept[node], -1) for node in chain]
            seen.append([number for number in numbers if number >= 0])
            rest.append([tokens[row][node] for node, number in zip(chain, numbers, strict=True) if number < 0])
            for node, choice in zip(chain, this_round.tokens[row], strict=True):
                if (grown := pool.grown.get(kept[node])) is not None:
                    at = grown.tokens.index(choice) if choice in grown.tokens else len(grown.tokens)
                    self.foresight.learn(grown.scores, grown.doubt, at)
        self.runner.commit(seen, rest)
        if self.pace is not None and not self._reading:
            tree, new_tokens = this_round.tree, sum(map(len, this_round.tokens))
            self.pace.finished(tree.size, new_tokens / tree.rows, self._drafting, this_round.seconds)
        self._reading, self._behind = False, not any(pool.numbers for pool in self._pools)


def _worth(pools: list[Pool], fronts: list[list[int]], less: float = 0.0) -> float:
    """Tokens that these candidates are expected to bring beyond ``less`` each, in the mean over the rows."""
    values = (math.exp(pool.values[i]) for pool, front in zip(pools, fronts, strict=True) for i in front)
    return math.fsum(max(0.0, value - less) for value in values) / len(pools)


def _prefixes(pools: list[Pool], fronts: list[list[int]], width: int) -> list[list[list[int] | None]]:
    """Tokens after the root up to each node of the fronts; None for places that hold no node."""
    out: list[list[list[int] | None]] = []
    for pool, front in zip(pools, fronts, strict=True):
        paths: list[list[int] | None] = [[pool.tokens[i] for i in pool.path(candidate)] for candidate in front]
        out.append(paths + [None] * (width - len(front)))
    return out
