"""Candidates as tensors: the target's tree, and the masks and prefixes of a level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.draft.adaptive.candidates import CandidateTree


class TreeTensors(NamedTuple):
    """The kept candidates of all rows; the fields are those of :class:`draftwood.core.tree.DraftTree`."""

    tokens: Int[Tensor, "row node"]
    parents: Int[Tensor, "row node"]
    depths: Int[Tensor, "row node"]
    valid: Bool[Tensor, "row node"]
    ancestors: Bool[Tensor, "row node node"]


def tree_tensors(trees: Sequence[CandidateTree], kept: Sequence[list[int]], device: torch.device) -> TreeTensors:
    """Tensors of the kept candidates, parents first."""
    size = max(map(len, kept))
    numbers = np.zeros((3, len(trees), size), dtype=np.int64)  # token, parent and depth per node
    valid = np.zeros((len(trees), size), dtype=np.bool_)
    ancestors: list[list[list[bool]]] = []
    for row, (tree, nodes) in enumerate(zip(trees, kept, strict=True)):
        node_of = {candidate: i for i, candidate in enumerate(nodes)}
        parents = [node_of[tree.parents[candidate]] for candidate in nodes]
        numbers[:, row, : len(nodes)] = [tree.tokens[i] for i in nodes], parents, [tree.depths[i] for i in nodes]
        valid[row, : len(nodes)] = True
        visible: list[list[bool]] = []
        for i in range(size):  # padding sees itself
            visible.append(visible[parents[i]].copy() if 0 < i < len(parents) else [False] * size)
            visible[i][i] = True
        ancestors.append(visible)
    tokens, parents_of, depths = torch.from_numpy(numbers).to(device).unbind()
    masks = (torch.from_numpy(mask).to(device) for mask in (valid, np.array(ancestors, np.bool_)))
    return TreeTensors(tokens, parents_of, depths, *masks)


def ancestor_mask(trees: Sequence[CandidateTree], frontiers: Sequence[list[int]], seen: int) -> Bool[Tensor, "row n all"]:
    """What each frontier node attends to: the ``seen`` nodes and the new ones. Gives the new nodes their numbers."""
    n = max(map(len, frontiers))
    sees = np.zeros((len(trees), n, seen + n), dtype=np.bool_)
    sees[:, range(n), range(seen, seen + n)] = True
    sees[:, :, 0] = True
    for tree, frontier, its in zip(trees, frontiers, sees, strict=True):
        for i, candidate in enumerate(frontier):
            tree.numbers[candidate] = seen + i
            while candidate:
                its[i, tree.numbers[candidate]] = True
                candidate = tree.parents[candidate]
    return torch.from_numpy(sees)


def prefixes(trees: Sequence[CandidateTree], frontiers: Sequence[list[int]]) -> list[list[list[int] | None]]:
    """Tokens after the root up to each frontier node; None for padding."""
    width = max(map(len, frontiers))
    out: list[list[list[int] | None]] = []
    for tree, frontier in zip(trees, frontiers, strict=True):
        paths: list[list[int] | None] = [[tree.tokens[i] for i in tree.path(candidate)] for candidate in frontier]
        out.append(paths + [None] * (width - len(frontier)))
    return out
