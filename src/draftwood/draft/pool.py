"""Candidates for the nodes of a tree that is grown best-first, on the host, and the tree that is kept of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Grown(NamedTuple):
    """The children that a candidate could have, with the logs of their shares of its value.

    ``scores`` and ``doubt`` are what the shares were made from, where they are learnt.
    """

    tokens: list[int]
    shares: list[float]
    scores: Sequence[float] = ()
    doubt: float = 0.0


@final
class Pool:
    """One row's candidates on the host, in the order in which they came; candidate 0 is the root, parents come first.

    Attributes:
        tokens, parents, depths: as in a tree.
        values: log of the estimated probability that the text runs through the candidate.
        numbers: the draft runner's number of each candidate that it has scored.
        grown: what was known of a candidate's children when they were made.
        guessed: of a candidate with a guessed child, that child and its chance.
    """

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.depths, self.values = [root], [0], [0], [0.0]
        self.numbers: dict[int, int] = {}
        self.grown: dict[int, Grown] = {}
        self.guessed: dict[int, tuple[int, float]] = {}

    def graft(self, tokens: Sequence[int], chances: Sequence[float]) -> None:
        """A guess of what follows the root, made without the draft; before any other candidate comes."""
        for parent, (token, chance) in enumerate(zip(tokens, chances, strict=True)):
            self.guessed[parent] = self._new(parent, token, math.log(chance)), chance

    def add(self, parent: int, grown: Grown) -> None:
        """Children of a candidate. Where one is guessed already, the choice falls on it by its chance, and otherwise on any
        of them by its share."""
        self.grown[parent] = grown
        guess, chance = self._guess(parent)
        for token, share in zip(grown.tokens, grown.shares, strict=False):  # the last share may be that of no child at all
            if guess and token == self.tokens[guess]:
                self._raise(guess, math.log(chance + (1.0 - chance) * math.exp(share)))
            else:
                self._new(parent, token, share + math.log1p(-chance))

    def _guess(self, parent: int) -> tuple[int, float]:
        """A candidate's guessed child and its chance; (0, 0) where there is none."""
        return self.guessed.get(parent, (0, 0.0))

    def _new(self, parent: int, token: int, share: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.values.append(self.values[parent] + share)
        return len(self.tokens) - 1

    def _raise(self, guess: int, share: float) -> None:
        """Another share for a guessed candidate, of which those that were guessed behind it have theirs."""
        while guess:
            self.values[guess] = self.values[self.parents[guess]] + share
            guess, chance = self._guess(guess)
            share = math.log(chance) if guess else 0.0

    def fill(self, places: Sequence[Grown], nodes: int, stops: frozenset[int]) -> None:
        """Candidates enough for a tree of the ``nodes`` best ones, where all nodes of one depth have the same children.

        Args:
            places: the children of nodes by their depth; those further down have none.
            nodes: the root not counted.
            stops: tokens that end a text.
        """
        best = [(0.0, 0)]
        for _ in range(nodes):  # the root, and all but the last of those that are kept
            if not best:
                return
            candidate = heappop(best)[1]
            depth, end = self.depths[candidate], len(self.tokens)
            ends = candidate and self.tokens[candidate] in stops
            if depth < len(places) and places[depth].tokens and not ends:
                self.add(candidate, places[depth])
            if guess := self._guess(candidate)[0]:
                heappush(best, (-self.values[guess], guess))
            for new in range(end, len(self.tokens)):
                heappush(best, (-self.values[new], new))

    def most_promising(self, nodes: int, limit: int, stops: frozenset[int]) -> int | None:
        """The candidate that the text is likeliest to reach and leave what is guessed, of those that the draft could score
        next and that are among the ``nodes`` best; None if there is none above depth ``limit``."""
        enough, best, most = self._enough(nodes), None, 0.0
        for i, value in enumerate(self.values):
            if i in self.numbers or value < enough or self.depths[i] >= limit:
                continue
            if i and (self.parents[i] not in self.numbers or self.tokens[i] in stops):
                continue
            if (worth := self.unguessed(i)) > most:
                best, most = i, worth
        return best

    def chain(self, candidate: int, first: int, fans: Sequence[Grown], chosen: Sequence[int], stops: frozenset[int]) -> None:
        """Children of a candidate, then of the one ``chosen`` of them, and so on. The draft has scored those, as nodes from
        number ``first`` on."""
        for number, (grown, token) in enumerate(zip(fans, chosen, strict=False), first):
            self.numbers[candidate] = number
            since = len(self.tokens)
            if not grown.tokens or (candidate and self.tokens[candidate] in stops):
                return
            self.add(candidate, grown)
            children = (self._guess(candidate)[0], *range(since, len(self.tokens)))
            below = next((child for child in children if child and self.tokens[child] == token), None)
            if below is None:
                return  # rounding took another for the best
            candidate = below

    def above(self, candidate: int) -> list[int]:
        """The root and what stands between it and the candidate."""
        return [0, *self.path(candidate)[:-1]] if candidate else []

    def front(self, depth: int, width: int, nodes: int, least: float = 0.0) -> list[int]:
        """The best ``width`` candidates of this depth, if they are among the ``nodes`` best of all.

        All but the first must be worth ``least``. Best are those worth most beyond what is guessed behind them; what stands
        above them the draft must have scored.
        """
        level = [i for i, found in enumerate(self.depths) if found == depth and self.parents[i] in self.numbers]
        enough = self._enough(nodes)
        best = sorted(((self.unguessed(i), -i) for i in level), reverse=True)[:width]
        worthy = [-i for place, (worth, i) in enumerate(best) if not place or worth >= least]
        return [i for i in worthy if self.values[i] >= enough]

    def fresh(self, since: int, nodes: int) -> list[int]:
        """Those that came after ``since`` of the ``nodes`` best of all."""
        enough = self._enough(nodes)
        return [i for i in range(since, len(self.values)) if self.values[i] >= enough]

    def unguessed(self, candidate: int) -> float:
        """Estimated probability that the text runs through the candidate and not on to its guessed child."""
        return math.exp(self.values[candidate]) * (1.0 - self._guess(candidate)[1])

    def _enough(self, nodes: int) -> float:
        return sorted(self.values, reverse=True)[: nodes + 1][-1]

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


class Planes(NamedTuple):
    """Kept candidates of all rows as the tensors of a tree, one place for each."""

    tokens: Int[Tensor, "row node"]
    parents: Int[Tensor, "row node"]
    depths: Int[Tensor, "row node"]
    valid: Bool[Tensor, "row node"]
    ancestors: Bool[Tensor, "row node node"]


def planes(pools: Sequence[Pool], kept: Sequence[list[int]], device: torch.device) -> Planes:
    """The tree of the kept candidates, parents first."""
    size = max(map(len, kept))
    numbers = np.zeros((3, len(pools), size), dtype=np.int64)  # token, parent and depth per node
    valid = np.zeros((len(pools), size), dtype=np.bool_)
    ancestors: list[list[list[bool]]] = []
    for row, (pool, nodes) in enumerate(zip(pools, kept, strict=True)):
        place = {candidate: i for i, candidate in enumerate(nodes)}
        parents = [place[pool.parents[candidate]] for candidate in nodes]
        numbers[:, row, : len(nodes)] = [pool.tokens[i] for i in nodes], parents, [pool.depths[i] for i in nodes]
        valid[row, : len(nodes)] = True
        sees: list[list[bool]] = []
        for i in range(size):  # places without a node see themselves
            sees.append(sees[parents[i]].copy() if 0 < i < len(parents) else [False] * size)
            sees[i][i] = True
        ancestors.append(sees)
    tokens, parents_of, depths = torch.from_numpy(numbers).to(device).unbind()
    masks = (torch.from_numpy(mask).to(device) for mask in (valid, np.array(ancestors, np.bool_)))
    return Planes(tokens, parents_of, depths, *masks)


def lineage(pools: Sequence[Pool], fronts: Sequence[list[int]], seen: int) -> Bool[Tensor, "row n all"]:
    """Which of the ``seen`` nodes and of the new ones of the fronts each new one attends to; numbers the new ones."""
    n = max(map(len, fronts))
    sees = np.zeros((len(pools), n, seen + n), dtype=np.bool_)
    sees[:, range(n), range(seen, seen + n)] = True
    sees[:, :, 0] = True
    for pool, front, its in zip(pools, fronts, sees, strict=True):
        for i, candidate in enumerate(front):
            pool.numbers[candidate] = seen + i
            while candidate:
                its[i, pool.numbers[candidate]] = True
                candidate = pool.parents[candidate]
    return torch.from_numpy(sees)


def prefixes(pools: Sequence[Pool], fronts: Sequence[list[int]]) -> list[list[list[int] | None]]:
    """Tokens after the root up to each node of the fronts; None for places that hold no node."""
    width = max(map(len, fronts))
    out: list[list[list[int] | None]] = []
    for pool, front in zip(pools, fronts, strict=True):
        paths: list[list[int] | None] = [[pool.tokens[i] for i in pool.path(candidate)] for candidate in front]
        out.append(paths + [None] * (width - len(front)))
    return out
