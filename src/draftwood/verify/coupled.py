"""Matching verifiers: follow the child that equals the target's own choice at each node.

``Coupled`` makes the choice with shared noise, ``argmax(log p + G_t)``: exact sampling (Gumbel-max) that depends neither on
the drafter nor on the tree, so the same seed gives the same text with and without a draft (Daliri et al. 2024 for one
draft; here for any tree). ``Greedy`` is the case ``G = 0``: Draft & Verify of the survey (arXiv 2401.07851).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import ALL_DRAWS, Draw
from draftwood.core.log_probs import best_tokens
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.core.verifiers import Reads

Choose: TypeAlias = Callable[[int, int, int], int]
"""The target's choice below a node, asked with the row, the node and its depth."""


def follow(tree: DraftTree, choose: Choose) -> Verdict:
    """The longest path whose every token is its parent's choice, then the choice at its end; no other node is asked."""
    if tree.size == 1:
        return Verdict(paths=[[] for _ in range(tree.rows)], next_tokens=[choose(row, 0, 0) for row in range(tree.rows)])
    rows = enumerate(zip(tree.lists[0], tree.children, strict=True))
    walks = [_walk(tokens, children, partial(choose, row), 0, 0) for row, (tokens, children) in rows]
    paths, last = zip(*walks, strict=True)
    return Verdict(paths=list(paths), next_tokens=list(last))


def follow_table(tree: DraftTree, choice: Int[Tensor, "row node"]) -> Verdict:
    """:func:`follow` with the choices at all nodes (one host sync)."""
    picks = choice.tolist()
    return follow(tree, lambda row, node, _depth: int(picks[row][node]))


def _walk(
    tokens: list[int], children: list[list[int]], choose: Callable[[int, int], int], node: int, depth: int
) -> tuple[list[int], int]:
    """The longest matching path below a node, and the choice at its end. Equal siblings (independent draws) may both match:
    the first of equals."""
    path: list[int] = []
    while True:
        wanted = choose(node, depth + len(path))
        matching = [child for child in children[node] if tokens[child] == wanted]
        if not matching:
            return path, wanted
        if len(matching) > 1:
            walks = [(child, *_walk(tokens, children, choose, child, depth + len(path) + 1)) for child in matching]
            child, rest, wanted = max(walks, key=lambda walk: len(walk[1]))
            return [*path, child, *rest], wanted
        node = matching[0]
        path.append(node)


def matched(
    tree: DraftTree, scores: Float[Tensor, "row node vocab"], noise: Float[Tensor, "row depth vocab"] | None
) -> Verdict:
    """Follow the best token by scores and the noise of a node's depth."""
    if not scores.is_cpu:
        return matched_at_once(tree, scores, noise)
    table, extra = scores.detach().numpy(), None if noise is None else noise.detach().numpy()

    def choose(row: int, node: int, depth: int) -> int:
        own = table[row, node]
        if extra is None:
            return int(own.argmax())
        return int((own - own.max() + extra[row, depth]).argmax())  # beside large scores noise would lose its digits

    return follow(tree, choose)  # looks at the nodes of the path only


def matched_at_once(
    tree: DraftTree, scores: Float[Tensor, "row node vocab"], noise: Float[Tensor, "row depth vocab"] | None
) -> Verdict:
    """The same for an accelerator: all nodes, and one host sync."""
    if noise is not None:
        rows = torch.arange(tree.rows, device=noise.device).unsqueeze(1)
        scores = scores - scores.amax(dim=-1, keepdim=True) + noise[rows, tree.depths]
    return follow_table(tree, best_tokens(scores))


@final
class Coupled:
    """Match the target's shared-noise choice; exact for any tree that is independent of the shared noise or made with it."""

    name: ClassVar[str] = "coupled"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = ALL_DRAWS
    reads: ClassVar[Reads] = "argmax"
    greedy_only: ClassVar[bool] = False

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """Choices at the nodes of the path; on an accelerator at all nodes in one pass. Scores do as well as
        distributions."""
        noise = rng.shared(0, tree.max_depth + 1, target_logp.shape[-1])
        return matched(tree, target_logp, noise)


@final
class Greedy:
    """Match the target's most likely token: exact at temperature 0 only, where it is the distribution itself."""

    name: ClassVar[str] = "greedy"
    lossless: ClassVar[bool] = True
    draws: ClassVar[frozenset[Draw]] = ALL_DRAWS
    reads: ClassVar[Reads] = "argmax"
    greedy_only: ClassVar[bool] = True

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """As :class:`Coupled` without noise; ``rng`` is not asked."""
        return matched(tree, target_logp, None)
