"""Draft trees as flat tensors: node 0 is the root, parents come before children, siblings stay in draw order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Draw(StrEnum):
    """How the children of a node were chosen; it fixes the law ``Q_j`` of the j-th child."""

    WITHOUT_REPLACEMENT = "without_replacement"  # Q_1 = q, Q_{j+1} = norm(Q_j with x_j removed)
    INDEPENDENT = "independent"  # Q_j = q
    POINT_MASS = "point_mass"  # Q_j is certain
    SHARED_NOISE = "shared_noise"  # ranked with the target's own noise: a match, never an acceptance by chance


ALL_DRAWS = frozenset(Draw)


@final
@dataclass(frozen=True, kw_only=True)
class DraftTree:
    """One draft tree per row.

    Attributes:
        tokens: the token of each node; the root holds the last committed token.
        parents: index of each node's parent, smaller than the node's own; 0 for the root.
        depths: distance from the root.
        valid: False for places that hold no node (the draft's support was exhausted there).
        ancestors: ``[row, i, j]`` is True when ``j`` is ``i`` or one of its ancestors.
        branching: the largest number of children that a node may have.
        draw: how siblings were chosen.
        draft_logp: the draft's log-law at inner node ``i``, which are the first nodes; None when no verifier needs it.
    """

    tokens: Int[Tensor, "row node"]
    parents: Int[Tensor, "row node"]
    depths: Int[Tensor, "row node"]
    valid: Bool[Tensor, "row node"]
    ancestors: Bool[Tensor, "row node node"]
    branching: int
    draw: Draw
    draft_logp: Float[Tensor, "row inner vocab"] | None = None

    @property
    def rows(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def size(self) -> int:
        """Places for nodes, the root included."""
        return int(self.tokens.shape[1])

    @cached_property
    def max_depth(self) -> int:
        """The greatest depth of any place (one host sync on an accelerator)."""
        return int(self.depths.max())

    @cached_property
    def children(self) -> Int[Tensor, "row node child"]:
        """Children of each node in draw order, -1 where there is none."""
        rows, size, width = self.rows, self.size, max(1, self.branching)
        real = self.valid.clone()
        real[:, 0] = False
        same = (self.parents.unsqueeze(2) == self.parents.unsqueeze(1)) & real.unsqueeze(1)
        rank = same.tril(-1).sum(-1)
        slot = torch.where(real, self.parents * width + rank, size * width)
        table = torch.full((rows, size * width + 1), -1, dtype=torch.long, device=self.tokens.device)
        index = torch.arange(size, device=self.tokens.device).expand(rows, -1)
        return table.scatter_(1, slot, index)[:, :-1].view(rows, size, width)

    def prefixes(self) -> list[list[list[int] | None]]:
        """Tokens after the root up to each node, ``[row][node]``, for laws that depend on the text so far."""
        parts = (part.tolist() for part in (self.tokens, self.parents, self.valid))
        return [prefixes_of(*row) for row in zip(*parts, strict=True)]

    def render(self, row: int = 0, decode: Callable[[int], str] = str) -> str:
        """A text picture of one row's tree, one node a line."""
        children, lines = self.children[row].tolist(), []

        def walk(node: int, indent: str) -> None:
            kids = [c for c in children[node] if c >= 0]
            for i, child in enumerate(kids):
                last = i == len(kids) - 1
                lines.append(f"{indent}{'└─' if last else '├─'} {decode(int(self.tokens[row, child]))}")
                walk(child, indent + ("   " if last else "│  "))

        lines.append(decode(int(self.tokens[row, 0])))
        walk(0, "")
        return "\n".join(lines)


def prefixes_of(tokens: list[int], parents: list[int], valid: list[bool]) -> list[list[int] | None]:
    """Tokens after the root up to each node of one row; None where there is no node."""
    out: list[list[int] | None] = [[]]
    for token, parent, real in zip(tokens[1:], parents[1:], valid[1:], strict=True):
        above = out[parent]
        out.append([*above, token] if real and above is not None else None)
    return out


def ancestors_of(parents: Int[Tensor, "row node"], depth: int) -> Bool[Tensor, "row node node"]:
    """The ancestor matrix of trees no deeper than ``depth``, by repeated squaring."""
    size = parents.shape[1]
    reach = torch.eye(size, device=parents.device).expand(parents.shape[0], -1, -1).contiguous()
    reach.scatter_(2, parents.unsqueeze(-1), 1.0)
    for _ in range(max(0, depth - 1).bit_length()):
        reach = (reach @ reach).clamp_(max=1.0)
    return reach > 0


@final
class TreeBuilder:
    """A tree under construction, level by level.

    Args:
        root: the last committed token of each row.
        capacity: the largest number of nodes, the root included.
    """

    def __init__(self, root: Int[Tensor, "row"], capacity: int) -> None:
        rows, device = root.shape[0], root.device
        self.tokens = torch.zeros(rows, capacity, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        self.depths = torch.zeros_like(self.tokens)
        self.valid = torch.ones(rows, capacity, dtype=torch.bool, device=device)
        self.ancestors = torch.zeros(rows, capacity, capacity, dtype=torch.bool, device=device)
        self.ancestors.diagonal(dim1=1, dim2=2).fill_(True)
        self.tokens[:, 0] = root
        self.size = 1
        self.level = slice(0, 1)
        self.depth = 0

    def add(self, tokens: Int[Tensor, "row n"], parents: Int[Tensor, "row n"], valid: Bool[Tensor, "row n"]) -> None:
        """Append one level; ``parents`` number the nodes of the level before it, from 0."""
        start, stop = self.size, self.size + tokens.shape[1]
        self.depth += 1
        parents = parents + self.level.start
        self.tokens[:, start:stop] = torch.where(valid, tokens, 0)
        self.parents[:, start:stop] = parents
        self.depths[:, start:stop] = self.depth
        self.valid[:, start:stop] = valid
        above = self.ancestors[:, :start, :start]
        self.ancestors[:, start:stop, :start] = above.take_along_dim(parents.unsqueeze(-1), dim=1)
        self.size, self.level = stop, slice(start, stop)

    def level_ancestors(self) -> Bool[Tensor, "row n seen"]:
        """Which of the nodes so far each node of the newest level attends to."""
        return self.ancestors[:, self.level, : self.size]

    def prefixes(self) -> list[list[list[int] | None]]:
        """As :meth:`DraftTree.prefixes`, for the newest level only."""
        parts = (part[:, : self.size].tolist() for part in (self.tokens, self.parents, self.valid))
        return [prefixes_of(*row)[self.level] for row in zip(*parts, strict=True)]

    def build(self, *, branching: int, draw: Draw, draft_logp: Float[Tensor, "row inner vocab"] | None) -> DraftTree:
        """The finished tree."""
        n = self.size
        return DraftTree(
            tokens=self.tokens[:, :n],
            parents=self.parents[:, :n],
            depths=self.depths[:, :n],
            valid=self.valid[:, :n],
            ancestors=self.ancestors[:, :n, :n],
            branching=branching,
            draw=draw,
            draft_logp=draft_logp,
        )
