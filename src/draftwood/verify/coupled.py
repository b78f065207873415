"""Matching verifiers: follow the child that equals the target's own choice at each node.

``Coupled`` makes the choice with shared noise: ``argmax(log p + G_t)``. This is exact sampling (Gumbel-max). It depends on
neither the drafter nor the tree, so one seed gives the same text with and without a draft (Daliri et al. 2024 for one draft;
here for any tree). ``Greedy`` is the case ``G = 0``: Draft & Verify of the survey (arXiv 2401.07851).
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.verify import Known


def follow_table(tree: DraftTree, choice: Int[np.ndarray | Tensor, "row node"]) -> Verdict:
    """Keep the longest path on which every token is the choice at its parent; the next token is the choice at its end.

    ``choice`` has the choices at all nodes (one host sync).
    """
    picks: list[list[int]] = choice.tolist()
    if tree.size == 1:
        return Verdict(paths=[[] for _ in picks], next_tokens=[token for [token] in picks])
    walks = [_walk(*row, picks[number], 0) for number, row in enumerate(zip(*tree.host, strict=True))]
    return Verdict(paths=[path for path, _ in walks], next_tokens=[token for _, token in walks])


def _walk(tokens: list[int], parents: list[int], valid: list[bool], picks: list[int], node: int) -> tuple[list[int], int]:
    """The longest matching path below a node of a row, and the choice at its end.

    Siblings drawn independently may hold the same token. Then the one with the longest path is taken, the first if several.
    """
    path: list[int] = []
    while True:
        chosen, after = picks[node], range(node + 1, len(tokens))
        matching = [child for child in after if parents[child] == node and tokens[child] == chosen and valid[child]]
        if not matching:
            return path, chosen
        if len(matching) > 1:
            walks = [(child, *_walk(tokens, parents, valid, picks, child)) for child in matching]
            child, rest, chosen = max(walks, key=lambda walk: len(walk[1]))
            return [*path, child, *rest], chosen
        node = matching[0]
        path.append(node)


@final
class Coupled(Known, name="coupled"):
    """Match the target's shared-noise choice; exact for any tree that is independent of the shared noise or made with it."""

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """Follow the best token under the noise of each text position.

        ``target_logp`` may be known up to a constant of each node.
        """
        noise = rng.shared(0, tree.max_depth + 1, target_logp.shape[-1])
        if noise is None:
            return follow_table(tree, target_logp.argmax(dim=-1))
        rows = torch.arange(tree.rows, device=noise.device).unsqueeze(1)
        noise = noise[rows, torch.as_tensor(tree.depths, device=noise.device)]
        above = target_logp - target_logp.amax(dim=-1, keepdim=True)  # noise that is added to large scores loses its digits
        return follow_table(tree, (above + noise).argmax(dim=-1))


@final
class Greedy(Known, name="greedy"):
    """Match the target's most likely token: exact at temperature 0 only, where all probability is on that token."""

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """As :meth:`Coupled.verify` without noise; ``rng`` is not used."""
        return follow_table(tree, target_logp.argmax(dim=-1))
