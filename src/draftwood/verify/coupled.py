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

from draftwood.core.log_probs import Pending
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree, HostTree
from draftwood.sampling.best import Choose, chooser, follow_best
from draftwood.verify import Known


def follow(tree: DraftTree, choose: Choose) -> Verdict:
    """Keep the longest path on which every token is the choice at its parent; the next token is the choice at its end.

    ``choose`` is called for the nodes on matching paths only.
    """
    walks = [_walk(tree.host, row, choose, 0, 0) for row in range(tree.rows)]
    return Verdict(paths=[path for path, _ in walks], next_tokens=[token for _, token in walks])


def follow_table(tree: DraftTree, choice: Int[np.ndarray | Tensor, "row node"]) -> Verdict:
    """:func:`follow` with the choices at all nodes given as a table (one host sync)."""
    picks: list[list[int]] = choice.tolist()
    if tree.size == 1:
        return Verdict(paths=[[] for _ in picks], next_tokens=[token for [token] in picks])
    return follow(tree, lambda row, node, _depth: picks[row][node])


def _walk(tree: HostTree, row: int, choose: Choose, node: int, depth: int) -> tuple[list[int], int]:
    """The longest matching path below a node, and the choice at its end.

    Siblings drawn independently may hold the same token. Then the one with the longest path is taken, the first if several.
    """
    path: list[int] = []
    tokens, parents, valid = tree.tokens[row], tree.parents[row], tree.valid[row]
    while True:
        chosen = choose(row, node, depth + len(path))
        after = range(node + 1, len(tokens))
        matching = [child for child in after if parents[child] == node and tokens[child] == chosen and valid[child]]
        if not matching:
            return path, chosen
        if len(matching) > 1:
            walks = [(child, *_walk(tree, row, choose, child, depth + len(path) + 1)) for child in matching]
            child, rest, chosen = max(walks, key=lambda walk: len(walk[1]))
            return [*path, child, *rest], chosen
        node = matching[0]
        path.append(node)


def matched(tree: DraftTree, target: Pending, rng: RoundRng | None) -> Verdict:
    """Follow the token with the best sum of its score and the shared noise of the node's depth; None for no noise.

    On the host only the nodes of the path are read, in one call of the native library where it takes them. On an accelerator
    no row may have a cut, or all have temperature 0.
    """
    if not target.scores.is_cpu:
        noise = None if rng is None else rng.shared(0, tree.max_depth + 1, target.vocab)
        return matched_at_once(tree, target.scores, noise)
    found = follow_best(tree, target, rng)
    return follow(tree, chooser(target, rng)) if found is None else Verdict(paths=found[0], next_tokens=found[1])


def matched_at_once(
    tree: DraftTree, scores: Float[Tensor, "row node vocab"], noise: Float[Tensor, "row depth vocab"] | None
) -> Verdict:
    """:func:`matched` for an accelerator, given the noise: the choices at all nodes in one pass, and one host sync."""
    if noise is not None:
        rows = torch.arange(tree.rows, device=noise.device).unsqueeze(1)
        scores = scores - scores.amax(dim=-1, keepdim=True) + noise[rows, torch.as_tensor(tree.depths, device=noise.device)]
    return follow_table(tree, scores.argmax(dim=-1))


def _match(tree: DraftTree, scores: Float[Tensor, "row node vocab"], rng: RoundRng | None) -> Verdict:
    return matched(tree, Pending(scores=scores, cuts=[None] * tree.rows, vocab=scores.shape[-1]), rng)


@final
class Coupled(Known, name="coupled"):
    """Match the target's shared-noise choice; exact for any tree that is independent of the shared noise or made with it."""

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """Follow the best token under the noise of each text position.

        ``target_logp`` may be known up to a constant of each node.
        """
        return _match(tree, target_logp, rng)


@final
class Greedy(Known, name="greedy"):
    """Match the target's most likely token: exact at temperature 0 only, where all probability is on that token."""

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """As :meth:`Coupled.verify` without noise; ``rng`` is not used."""
        return _match(tree, target_logp, None)
