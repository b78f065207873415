"""Draft trees as flat tensors: node 0 is the root, parents come before children, siblings stay in draw order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.log_probs import LogProbs


class HostTree(NamedTuple):
    """Parts of a tree as lists, ``[row][node]``."""

    tokens: list[list[int]]
    parents: list[list[int]]
    valid: list[list[bool]]


@final
@dataclass(frozen=True, kw_only=True)
class DraftTree:
    """One draft tree per row.

    Attributes:
        tokens: the token of each node; the root holds the last committed token.
        parents: index of each node's parent, smaller than the node's own; 0 for the root.
        depths: distance from the root.
        valid: False for padding, where the draft's support was exhausted.
        ancestors: ``[row, i, j]`` is True when ``j`` is ``i`` or one of its ancestors.
        branching: the largest number of children that a node may have.
        draw: how siblings were chosen.
        draft_log_probs: the draft's distributions at the inner nodes, which come first; None if no verifier needs them.
        ranking: returns the distributions that ranked the children, at the same nodes, where no verifier needs them; None
            without a draft model. Calling it may copy them.
        stop: why the tree is not larger, in a few words; None for a fixed shape.
        error: what ended the growth of the tree; None if nothing went wrong.
    """

    tokens: Int[Tensor, "row node"]
    parents: Int[Tensor, "row node"]
    depths: Int[Tensor, "row node"]
    valid: Bool[Tensor, "row node"]
    ancestors: Bool[Tensor, "row node node"]
    branching: int
    draw: Draw
    draft_log_probs: LogProbs | None = None
    ranking: Callable[[], LogProbs] | None = None
    stop: str | None = None
    error: Exception | None = None

    @property
    def draft_logp(self) -> Float[Tensor, "row inner vocab"] | None:
        """The draft's log-probabilities over the whole vocabulary."""
        return None if self.draft_log_probs is None else self.draft_log_probs.dense()

    @property
    def rows(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def size(self) -> int:
        """Number of nodes, with the root and padding."""
        return int(self.tokens.shape[1])

    @cached_property
    def max_depth(self) -> int:
        """The greatest depth, padding included (one host sync on an accelerator)."""
        return int(self.depths.max()) if self.size > 1 else 0

    @cached_property
    def host(self) -> HostTree:
        """``tokens``, ``parents`` and ``valid`` as Python lists (host sync)."""
        return HostTree(self.tokens.tolist(), self.parents.tolist(), self.valid.tolist())

    @property
    def drafted(self) -> list[int]:
        """Drafted nodes per row: without root and padding (host sync)."""
        return [sum(valid) - 1 for valid in self.host.valid] if self.size > 1 else [0] * self.rows

    @cached_property
    def children(self) -> list[list[list[int]]]:
        """Children of each node in draw order, ``[row][node]`` (host sync)."""
        _, parents, valid = self.host
        table: list[list[list[int]]] = [[[] for _ in row] for row in parents]
        for children, row, real in zip(table, parents, valid, strict=True):
            for node in range(1, len(row)):
                if real[node]:
                    children[row[node]].append(node)
        return table

    def prefixes(self) -> list[list[list[int] | None]]:
        """Tokens after the root up to each node, ``[row][node]``; None for padding.

        Distributions that depend on the text so far need them.
        """
        return [prefixes_of(*row) for row in zip(*self.host, strict=True)]


def prefixes_of(tokens: list[int], parents: list[int], valid: list[bool]) -> list[list[int] | None]:
    """Tokens after the root up to each node of one row; None for padding."""
    out: list[list[int] | None] = [[]]
    for token, parent, real in zip(tokens[1:], parents[1:], valid[1:], strict=True):
        above = out[parent]
        out.append([*above, token] if real and above is not None else None)
    return out


@final
class TreeBuilder:
    """A tree under construction, level by level.

    Args:
        root: the last committed token of each row.
        capacity: the largest number of nodes, the root included.
    """

    def __init__(self, root: Int[Tensor, "row"], capacity: int) -> None:
        self.ancestors: Bool[Tensor, "row node node"] = torch.zeros(
            root.shape[0], capacity, capacity, dtype=torch.bool, device=root.device
        )
        self.ancestors.diagonal(dim1=1, dim2=2).fill_(True)
        self.tokens: list[Int[Tensor, "row n"]] = [root.unsqueeze(1)]  # per level, -1 for padding
        self.parents: list[Int[Tensor, "row n"]] = [torch.zeros_like(self.tokens[0])]
        self.depths: list[Int[Tensor, "row n"]] = [self.parents[0]]
        self.size = 1
        self.level = slice(0, 1)

    def add(self, tokens: Int[Tensor, "row n"], parents: Int[Tensor, "row n"]) -> None:
        """Append one level.

        Args:
            tokens: -1 marks padding.
            parents: indices into the previous level, from 0.
        """
        start, stop = self.size, self.size + tokens.shape[1]
        parents = parents + self.level.start
        self.tokens.append(tokens)
        self.parents.append(parents)
        self.depths.append(torch.full_like(parents, len(self.depths)))
        above = self.ancestors[:, :start, :start]
        self.ancestors[:, start:stop, :start] = above.take_along_dim(parents.unsqueeze(-1), dim=1)
        self.size, self.level = stop, slice(start, stop)

    def level_ancestors(self) -> Bool[Tensor, "row n seen"]:
        """For each node of the newest level, the nodes so far that it attends to."""
        return self.ancestors[:, self.level, : self.size]

    def prefixes(self) -> list[list[list[int] | None]]:
        """:meth:`DraftTree.prefixes` of the newest level only."""
        tokens, parents = (torch.cat(part, dim=1).tolist() for part in (self.tokens, self.parents))
        valid = [[token >= 0 for token in row] for row in tokens]
        return [prefixes_of(*row)[self.level] for row in zip(tokens, parents, valid, strict=True)]

    def build(
        self,
        *,
        branching: int,
        draw: Draw,
        draft_log_probs: LogProbs | None,
        ranking: Callable[[], LogProbs] | None = None,
        stop: str | None = None,
        error: Exception | None = None,
    ) -> DraftTree:
        """The finished tree."""
        n, tokens = self.size, torch.cat(self.tokens, dim=1)
        return DraftTree(
            tokens=tokens.clamp(min=0),
            parents=torch.cat(self.parents, dim=1),
            depths=torch.cat(self.depths, dim=1),
            valid=tokens >= 0,
            ancestors=self.ancestors[:, :n, :n],
            branching=branching,
            draw=draw,
            draft_log_probs=draft_log_probs,
            ranking=ranking,
            stop=stop,
            error=error,
        )
