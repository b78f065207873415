"""Matching verifiers: follow the child that equals the target's own choice at each node.

``Coupled`` makes the choice with shared noise, ``argmax(log p + G_t)``: exact sampling (Gumbel-max) that depends neither on
the drafter nor on the tree, so the same seed gives the same text with and without a draft (Daliri et al. 2024 for one
draft; here for any tree). ``Greedy`` is the case ``G = 0``: Draft & Verify of the survey (arXiv 2401.07851).
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.noise import Choices
from draftwood.rounds import Verdict
from draftwood.tree import ALL_DRAWS, DraftTree, Draw


def follow(tree: DraftTree, choice: Int[Tensor, "row node"]) -> Verdict:
    """The longest path whose every token is its parent's choice, then the choice at its end. No host sync inside."""
    matches = (tree.tokens == choice.gather(1, tree.parents)) & tree.valid
    matches[:, 0] = True
    reached = (matches.unsqueeze(1) | ~tree.ancestors).all(-1)
    # Equal siblings (independent draws) may both match: the first of the deepest is kept.
    end = torch.where(reached, tree.depths, -1).argmax(dim=1, keepdim=True)
    on_path = tree.ancestors.take_along_dim(end.unsqueeze(-1), dim=1).squeeze(1)
    index = torch.arange(tree.size, device=choice.device).expand_as(choice)
    # Scatter by depth: each depth holds exactly one node of the path; everything else lands in the spare last place.
    place = torch.where(on_path, tree.depths, tree.size)
    steps = torch.full((tree.rows, tree.size + 1), -1, dtype=torch.long, device=choice.device)
    nodes = steps.scatter_(1, place, index)[:, 1 : tree.max_depth + 1]
    return Verdict(nodes=nodes, next_token=choice.gather(1, end).squeeze(1))


@final
class Coupled:
    """Match the target's shared-noise choice; exact for any tree that is independent of the shared noise or made with it."""

    name: ClassVar[str] = "coupled"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = ALL_DRAWS

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], choices: Choices) -> Verdict:
        """One pass over all nodes."""
        noise = choices.shared(0, tree.max_depth + 1, target_logp.shape[-1])
        if noise is None:
            return follow(tree, target_logp.argmax(dim=-1))
        at_node = noise.take_along_dim(tree.depths.unsqueeze(-1), dim=1)
        return follow(tree, (target_logp + at_node.to(target_logp.dtype)).argmax(dim=-1))


@final
class Greedy:
    """Match the target's most likely token: exact at temperature 0 only, where it is the law itself."""

    name: ClassVar[str] = "greedy"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = ALL_DRAWS

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], choices: Choices) -> Verdict:
        """One pass over all nodes; ``choices`` is not asked."""
        return follow(tree, target_logp.argmax(dim=-1))
