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

from draftwood.laws import best_tokens
from draftwood.noise import Choices
from draftwood.rounds import Verdict, path_table
from draftwood.tree import ALL_DRAWS, DraftTree, Draw


def follow(tree: DraftTree, choice: Int[Tensor, "row node"]) -> Verdict:
    """The longest path whose every token is its parent's choice, then the choice at its end (one host sync)."""
    picks = choice.tolist()
    paths = [
        _walk(tokens, kids, wanted, 0) for tokens, kids, wanted in zip(tree.lists[0], tree.children, picks, strict=True)
    ]
    last = [wanted[path[-1] if path else 0] for path, wanted in zip(paths, picks, strict=True)]
    return Verdict(nodes=path_table(paths, choice.device), next_token=torch.tensor(last, device=choice.device))


def _walk(tokens: list[int], children: list[list[int]], wanted: list[int], node: int) -> list[int]:
    """The longest matching path below a node. Equal siblings (independent draws) may both match: the first of equals."""
    path: list[int] = []
    while matching := [child for child in children[node] if tokens[child] == wanted[node]]:
        if len(matching) > 1:
            return path + max(([child, *_walk(tokens, children, wanted, child)] for child in matching), key=len)
        node = matching[0]
        path.append(node)
    return path


@final
class Coupled:
    """Match the target's shared-noise choice; exact for any tree that is independent of the shared noise or made with it."""

    name: ClassVar[str] = "coupled"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = ALL_DRAWS
    tolerant: ClassVar[bool] = False

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], choices: Choices) -> Verdict:
        """One pass over all nodes."""
        noise = choices.shared(0, tree.max_depth + 1, target_logp.shape[-1])
        if noise is None:
            return follow(tree, best_tokens(target_logp))
        if tree.rows == 1:
            own = noise.index_select(1, tree.depths[0])
        else:
            own = noise[torch.arange(tree.rows, device=noise.device).unsqueeze(1), tree.depths]
        return follow(tree, best_tokens(own + target_logp))


@final
class Greedy:
    """Match the target's most likely token: exact at temperature 0 only, where it is the law itself."""

    name: ClassVar[str] = "greedy"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = ALL_DRAWS
    tolerant: ClassVar[bool] = False

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], choices: Choices) -> Verdict:
        """One pass over all nodes; ``choices`` is not asked."""
        return follow(tree, best_tokens(target_logp))
