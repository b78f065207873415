"""Best-first shared-noise trees: the most valuable nodes under a budget, with one draft forward per level.

The value of a child estimates the probability that the target's choice falls on it, given the shared noise: the softmax of
its perturbed score among its siblings, sharpened by ``tau``; a node's value is the product along its path. Any tree is
legal here, since the verifier only matches. At temperature 0 the noise is zero and the rule is EAGLE-2's (arXiv 2406.16858).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.draft.shared_noise import shared_scores
from draftwood.models import Runner
from draftwood.noise import Choices
from draftwood.rounds import Round
from draftwood.sampling import Law, Paths
from draftwood.tree import DraftTree, Draw, ancestors_of


@dataclass
class _Pool:
    """All candidates so far, ``[row, candidate]``; candidate 0 is the root, parents come first."""

    tokens: list[Int[Tensor, "row m"]] = field(default_factory=list)
    parents: list[Int[Tensor, "row m"]] = field(default_factory=list)
    depths: list[Int[Tensor, "row m"]] = field(default_factory=list)
    values: list[Float[Tensor, "row m"]] = field(default_factory=list)
    size: int = 0

    def add(self, tokens: Tensor, parents: Tensor, depth: int, values: Tensor) -> None:
        self.tokens.append(tokens)
        self.parents.append(parents)
        self.depths.append(torch.full_like(tokens, depth))
        self.values.append(values)
        self.size += tokens.shape[1]

    def threshold(self, budget: int) -> Float[Tensor, "row 1"]:
        """The value that a candidate must reach to be among the ``budget`` best and the root."""
        values = torch.cat(self.values, dim=1)
        return values.topk(min(budget + 1, self.size), dim=1).values[:, -1:]


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
        rows, device = root.shape[0], root.device
        pool = _Pool()
        zero = torch.zeros(rows, 1, dtype=torch.long, device=device)
        pool.add(root.unsqueeze(1), zero, 0, torch.zeros(rows, 1, device=device))
        scored: list[Tensor] = []  # candidates in the order in which the runner saw them
        front = zero
        lineage = torch.ones(rows, 1, 1, dtype=torch.bool, device=device)  # over the scored candidates
        limit = torch.tensor(limits, device=device).unsqueeze(1)
        for depth in range(min(self.length, max(limits))):
            scored.append(front)
            values = self._expand(pool, front, lineage, law, choices, depth, limit)
            best = values.topk(min(self.width, values.shape[1]), dim=1)
            enter = best.values > -torch.inf
            if pool.size > self.nodes + 1:
                enter &= best.values >= pool.threshold(self.nodes)
            if not bool(enter.any()):
                break  # no child of these could enter the tree (host sync)
            front = best.indices + pool.size - values.shape[1]
            parent_at = pool.parents[-1].gather(1, best.indices)
            lineage = self._descend(lineage, torch.cat(scored, dim=1), parent_at, front.shape[1])
        return self._prune(pool, scored, law.sampling.greedy)

    def _expand(
        self,
        pool: _Pool,
        front: Int[Tensor, "row n"],
        lineage: Bool[Tensor, "row n seen"],
        law: Law,
        choices: Choices,
        depth: int,
        limit: Int[Tensor, "row 1"],
    ) -> Float[Tensor, "row m"]:
        """Score the front, put its best children into the pool and return their values."""
        tokens = torch.cat(pool.tokens, dim=1).gather(1, front)
        logits = self.runner.extend(tokens, torch.full_like(front, depth), lineage)
        logp = law.draft(logits, lambda: _prefixes(pool, front))
        best = shared_scores(logp, choices, depth).topk(min(self.fan, logp.shape[-1]), dim=-1)
        value = torch.cat(pool.values, dim=1).gather(1, front).unsqueeze(-1)
        share = (best.values / self.tau).log_softmax(dim=-1).to(value.dtype)
        possible = (best.values > -torch.inf) & (depth < limit).unsqueeze(-1)
        ends = [[t in stops for t in row] for row, stops in zip(tokens.tolist(), law.stops, strict=True)]  # host sync
        if depth > 0 and any(map(any, ends)):  # the root ends nothing
            possible &= ~torch.tensor(ends, device=tokens.device).unsqueeze(-1)
        values = torch.where(possible, value + share, -torch.inf).flatten(1)
        parents = front.repeat_interleave(best.indices.shape[-1], dim=1)
        pool.add(best.indices.flatten(1), parents, depth + 1, values)
        return values

    @staticmethod
    def _descend(
        lineage: Bool[Tensor, "row n seen"], scored: Int[Tensor, "row seen"], parents: Int[Tensor, "row m"], new: int
    ) -> Bool[Tensor, "row m grown"]:
        """Mask rows of the next front: the parent's row, the parent itself (the newest scored) and each its own column."""
        n = lineage.shape[1]
        newest = scored[:, -n:]
        at = (newest.unsqueeze(1) == parents.unsqueeze(2)).long().argmax(dim=2)
        above = lineage.take_along_dim(at.unsqueeze(-1), dim=1)
        own = torch.eye(new, dtype=torch.bool, device=lineage.device).expand(lineage.shape[0], -1, -1)
        return torch.cat([above, own], dim=2)

    def _prune(self, pool: _Pool, scored: list[Tensor], greedy: bool) -> DraftTree:
        values = torch.cat(pool.values, dim=1)
        # A child is never worth more than its parent and stands behind it: a stable order keeps no child without its parent.
        best = values.sort(dim=1, descending=True, stable=True).indices[:, : self.nodes + 1]
        kept = best.sort(dim=1).values
        place = torch.zeros_like(values, dtype=torch.long)
        place.scatter_(1, kept, torch.arange(kept.shape[1], device=kept.device).expand_as(kept))
        valid = values.gather(1, kept) > -torch.inf
        parents = torch.where(valid, place.gather(1, torch.cat(pool.parents, dim=1).gather(1, kept)), 0)
        number = torch.full_like(place, -1)
        if scored:
            seen = torch.cat(scored, dim=1)
            number.scatter_(1, seen, torch.arange(seen.shape[1], device=seen.device).expand_as(seen))
        self._seen = number.gather(1, kept).tolist()
        return DraftTree(
            tokens=torch.cat(pool.tokens, dim=1).gather(1, kept),
            parents=parents,
            depths=torch.cat(pool.depths, dim=1).gather(1, kept),
            valid=valid,
            ancestors=ancestors_of(parents, len(pool.tokens) - 1),
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


def _prefixes(pool: _Pool, front: Int[Tensor, "row n"]) -> Paths:
    """Tokens after the root up to each node of the front; None for candidates that cannot be."""
    tokens, parents = torch.cat(pool.tokens, dim=1).tolist(), torch.cat(pool.parents, dim=1).tolist()
    possible = (torch.cat(pool.values, dim=1) > -torch.inf).tolist()
    out: Paths = []
    for row, nodes in enumerate(front.tolist()):
        paths: list[list[int] | None] = []
        for node in nodes:
            if not possible[row][node]:
                paths.append(None)
                continue
            path: list[int] = []
            while node:
                path.append(tokens[row][node])
                node = parents[row][node]
            paths.append(path[::-1])
        out.append(paths)
    return out
