"""Draft trees as arrays on the host: node 0 is the root, parents come before children, siblings stay in draw order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, final

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.draws import FREE_DRAWS, Draw
from draftwood.core.log_probs import Distributions


class HostTree(NamedTuple):
    """Parts of a tree as lists, ``[row][node]``."""

    tokens: list[list[int]]
    parents: list[list[int]]
    valid: list[list[bool]]


@final
@dataclass(frozen=True, kw_only=True)
class DraftTree:
    """One draft tree per row. Runners of models on a device make tensors of it there.

    Attributes:
        tokens: the token of each node; the root holds the last committed token.
        parents: index of each node's parent, smaller than the node's own; 0 for the root.
        depths: distance from the root.
        valid: False for padding, where the draft's support was exhausted.
        ancestors: ``[row, i, j]`` is True when ``j`` is ``i`` or one of its ancestors.
        draw: how siblings were chosen.
        ranking: returns the draft's distributions at the inner nodes, which come first; None without a draft model. Calling
            it may copy them.
        stop: why the tree is not larger, in a few words; None for a fixed shape.
        error: what ended the growth of the tree; None if nothing went wrong.
    """

    tokens: Int[np.ndarray, "row node"]
    parents: Int[np.ndarray, "row node"]
    depths: Int[np.ndarray, "row node"]
    valid: Bool[np.ndarray, "row node"]
    ancestors: Bool[np.ndarray, "row node node"]
    draw: Draw
    ranking: Callable[[], Distributions] | None = None
    stop: str | None = None
    error: Exception | None = None

    @cached_property
    def draft_log_probs(self) -> Distributions | None:
        """The distributions that children were drawn from; None of others, which no verifier needs."""
        return None if self.ranking is None or self.draw in FREE_DRAWS else self.ranking()

    @cached_property
    def draft_logp(self) -> Float[Tensor, "row inner vocab"] | None:
        """The draft's log-probabilities over the whole vocabulary."""
        return None if self.draft_log_probs is None else self.draft_log_probs.dense()

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def size(self) -> int:
        """Number of nodes, with the root and padding."""
        return int(self.tokens.shape[1])

    @cached_property
    def max_depth(self) -> int:
        """The greatest depth, padding included."""
        return int(self.depths.max())

    @cached_property
    def host(self) -> HostTree:
        """``tokens``, ``parents`` and ``valid`` as Python lists."""
        return HostTree(self.tokens.tolist(), self.parents.tolist(), self.valid.tolist())

    @property
    def drafted(self) -> list[int]:
        """Drafted nodes per row: without root and padding."""
        return [sum(valid) - 1 for valid in self.valid.tolist()]

    @cached_property
    def children(self) -> list[list[list[int]]]:
        """Children of each node in draw order, ``[row][node]``."""
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


def prefixes_of(tokens: Sequence[int], parents: Sequence[int], valid: Sequence[bool]) -> list[list[int] | None]:
    """Tokens after the root up to each node of one row; None for padding."""
    out: list[list[int] | None] = [[]]
    for token, parent, real in zip(tokens[1:], parents[1:], valid[1:], strict=True):
        above = out[parent]
        out.append([*above, token] if real and above is not None else None)
    return out


@final
class RowNodes:
    """The nodes of one row under construction, as lists: a few nodes take less time so than as arrays.

    Attributes:
        tokens: -1 for padding.
        parents, depths: as in a tree.
        sees: for each node, one byte per node up to itself: 1 for itself and its ancestors.
    """

    __slots__ = ("depths", "parents", "sees", "tokens")

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.depths, self.sees = [root], [0], [0], [b"\1"]

    def add(self, token: int, parent: int) -> None:
        """Append a node."""
        self.sees.append(self.sees[parent].ljust(len(self.tokens), b"\0") + b"\1")
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)


class Nodes(NamedTuple):
    """New nodes of a round, as :meth:`draftwood.runners.protocols.Runner.extend` takes them."""

    tokens: Int[np.ndarray, "row node"]
    depths: Int[np.ndarray, "row node"]
    ancestors: Bool[np.ndarray, "row node seen"]


NOTHING: Final = Nodes(np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64), np.zeros((1, 0, 0), np.bool_))
"""No new nodes of one row."""


@final
class TreeBuilder:
    """A tree per row under construction.

    Args:
        root: the last committed token of each row.

    Attributes:
        rows: the nodes of each row.
        first: the first node of the newest level.
    """

    def __init__(self, root: Sequence[int]) -> None:
        self.rows = [RowNodes(int(token)) for token in root]
        self.first = 0

    @property
    def size(self) -> int:
        """Number of nodes of the longest row."""
        return max(len(row.tokens) for row in self.rows)

    def add(self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> None:
        """Append one level, as long in all rows.

        Args:
            tokens: per row; -1 marks padding.
            parents: indices into the previous level, from 0.
        """
        for row, new, above in zip(self.rows, tokens, parents, strict=True):
            first = self.first
            for token, parent in zip(new, above, strict=True):
                row.add(token, first + parent)
        self.first = self.size - max(map(len, tokens))

    def add_chains(self, chains: Sequence[Sequence[int]]) -> None:
        """Append a chain below each root."""
        for row, chain in zip(self.rows, chains, strict=True):
            for parent, token in enumerate(chain):
                row.add(token, parent)

    def nodes(self, first: int = 0) -> Nodes:
        """The nodes from this one on. Shorter rows get padding."""
        size, rows = self.size, self.rows
        for row in rows:
            while len(row.tokens) < size:
                row.add(-1, 0)
        tokens, depths = np.array([[row.tokens[first:] for row in rows], [row.depths[first:] for row in rows]])
        sees = bytearray().join([line.ljust(size, b"\0") for row in rows for line in row.sees[first:]])
        seen: Bool[np.ndarray, "row node seen"] = np.ndarray((*tokens.shape, size), np.bool_, sees)
        return Nodes(np.maximum(tokens, 0) if any(-1 in row.tokens for row in rows) else tokens, depths, seen)

    def prefixes(self, first: int) -> list[list[list[int] | None]]:
        """:meth:`DraftTree.prefixes` of the nodes from this one on."""
        rows = [prefixes_of(row.tokens, row.parents, [token >= 0 for token in row.tokens]) for row in self.rows]
        return [row[first:] for row in rows]

    def build(
        self,
        *,
        draw: Draw,
        ranking: Callable[[], Distributions] | None = None,
        stop: str | None = None,
        error: Exception | None = None,
    ) -> DraftTree:
        """The finished tree."""
        tokens, depths, ancestors = self.nodes()
        return DraftTree(
            tokens=tokens,
            parents=np.array([row.parents for row in self.rows]),
            depths=depths,
            valid=np.array([row.tokens for row in self.rows]) >= 0,
            ancestors=ancestors,
            draw=draw,
            ranking=ranking,
            stop=stop,
            error=error,
        )
