"""Best-first shared-noise trees: the most valuable nodes under a budget, with one draft forward per level.

The value of a child estimates the probability that the target's choice falls on it, given the shared noise: the softmax of
its perturbed score among its siblings, sharpened by ``tau``; a node's value is the product along its path. Any tree is
legal here, since the verifier only matches. At temperature 0 the noise is zero and the rule is EAGLE-2's (arXiv 2406.16858).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.draft.shared_noise import shared_scores
from draftwood.models import Runner
from draftwood.noise import Choices
from draftwood.rounds import Round
from draftwood.sampling import Law
from draftwood.tree import DraftTree, Draw

_NEVER = -float("inf")


@final
class Pool:
    """One row's candidates on the host, in the order in which they came; candidate 0 is the root, parents come first.

    Attributes:
        tokens, parents, depths: as in a tree.
        values: log of the estimated probability that the text runs through the candidate.
        numbers: the draft runner's number of each candidate that it has scored.
    """

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.depths, self.values = [root], [0], [0], [0.0]
        self.numbers: dict[int, int] = {}

    def add(self, parent: int, tokens: Sequence[int], shares: Sequence[float]) -> None:
        """Children of a candidate, with the logs of their shares of its value; impossible ones stay out."""
        for token, share in zip(tokens, shares, strict=True):
            if share > _NEVER:  # neither impossible nor NaN
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

    def best(self, nodes: int) -> list[int]:
        """The root and the ``nodes`` most valuable candidates, parents first: a child is never worth more than its parent,
        and the order is stable."""
        return sorted(sorted(range(len(self.values)), key=lambda i: -self.values[i])[: nodes + 1])


@final
class BestFirst:
    """Keeps the ``nodes`` most valuable nodes of a tree grown ``width`` nodes a level down to ``length``.

    Args:
        runner: the draft model.
        nodes: the node budget, the root not counted.
        width: nodes expanded per level.
        length: the depth budget.
        fan: candidates considered per node.
        tau: sharpness of the value; smaller trusts the draft's first choice more.
    """

    name = "shared-noise"
    draw = Draw.SHARED_NOISE

    def __init__(self, runner: Runner, *, nodes: int, width: int, length: int, fan: int = 4, tau: float = 1.0) -> None:
        self.runner = runner
        self.nodes = nodes
        self.width = width
        self.length = length
        self.fan = fan
        self.tau = tau
        self._seen: list[list[int]] = []  # per row, the runner's number of each tree node, -1 if it was not scored

    @property
    def max_length(self) -> int | None:
        return self.runner.max_length

    @property
    def forward_seconds(self) -> float:
        return self.runner.forward_seconds

    def start(self, texts: Sequence[Sequence[int]]) -> None:
        self.runner.start(texts)

    def select(self, rows: Sequence[int]) -> None:
        self.runner.select(rows)

    def draft(self, root: Int[Tensor, "row"], law: Law, choices: Choices, limits: Sequence[int]) -> DraftTree:
        pools = [Pool(token) for token in root.tolist()]
        fronts = [[0] if limit > 0 else [] for limit in limits]
        seen = 0
        for depth in range(self.length):
            if not any(fronts):
                break
            since = [len(pool.values) for pool in pools]
            seen = self._expand(pools, fronts, seen, law, choices, depth)
            fronts = [
                pool.front(first, self.width, self.nodes) if depth + 1 < limit else []
                for pool, first, limit in zip(pools, since, limits, strict=True)
            ]
            for pool, front, stops in zip(pools, fronts, law.stops, strict=True):
                front[:] = [i for i in front if pool.tokens[i] not in stops]  # nothing follows the end of the text
        return self._prune(pools, root.device, law.sampling.greedy)

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
        shares = (best.values / self.tau).log_softmax(dim=-1).tolist()  # host sync
        children = best.indices.tolist()
        for row, (pool, front) in enumerate(zip(pools, fronts, strict=True)):
            for i, candidate in enumerate(front):
                pool.add(candidate, children[row][i], shares[row][i])
        return seen + n

    def _prune(self, pools: list[Pool], device: torch.device, greedy: bool) -> DraftTree:
        kept = [pool.best(self.nodes) for pool in pools]
        size = max(map(len, kept))
        # Planes of numbers per node: token, parent, depth, and whether the place holds a node.
        planes = np.zeros((4, len(pools), size), dtype=np.int64)
        ancestors = np.zeros((len(pools), size, size), dtype=np.bool_)
        ancestors[:, range(size), range(size)] = True
        self._seen = []
        for row, (pool, nodes) in enumerate(zip(pools, kept, strict=True)):
            place = {candidate: i for i, candidate in enumerate(nodes)}
            for i, candidate in enumerate(nodes):
                parent = place[pool.parents[candidate]]
                planes[:, row, i] = pool.tokens[candidate], parent, pool.depths[candidate], 1
                ancestors[row, i] |= ancestors[row, parent]
            self._seen.append([pool.numbers.get(candidate, -1) for candidate in nodes])
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
        for row, (path, number) in enumerate(zip(this_round.paths, self._seen, strict=True)):
            chain = [0, *path]
            seen.append([number[n] for n in chain if number[n] >= 0])
            rest.append([tokens[row][n] for n in chain if number[n] < 0])
        self.runner.commit(seen, rest)


def _prefixes(pools: list[Pool], fronts: list[list[int]], width: int) -> list[list[list[int] | None]]:
    """Tokens after the root up to each node of the fronts; None for places that hold no node."""
    out: list[list[list[int] | None]] = []
    for pool, front in zip(pools, fronts, strict=True):
        paths: list[list[int] | None] = [[pool.tokens[i] for i in pool.path(candidate)] for candidate in front]
        out.append(paths + [None] * (width - len(front)))
    return out
