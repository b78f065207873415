"""The random decisions of a round, and the probabilities that they should have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.verify.siblings import probs_at
from draftwood.verify.sparse import reduced
from draftwood.verify.traversal import inner_levels, parents_of, post_order, weigh_children

_MIN_MASS: Final = 1e-4  # probability that must remain after earlier siblings; below it rounding errors are too large


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """A child that was tried.

    Attributes:
        depth, rank: its depth, and its number among its siblings in draw order; both from 1 on.
        chance: the probability of accepting it, given all earlier trials.
    """

    depth: int
    rank: int
    chance: float
    accepted: bool


@final
@dataclass(frozen=True, kw_only=True)
class Decision:
    """One row's verdict, and the distributions behind it.

    Attributes:
        trials: in the order in which they were made.
        residual: the distribution of the token after the path, up to a factor.
        target: the target's probabilities there.
        token: that token, as an index into both.
        after_rejection: a child was tried and rejected at the end of the path.
    """

    trials: list[Trial]
    residual: Float[Tensor, "n"]
    target: Float[Tensor, "n"]
    token: int
    after_rejection: bool


Rule: TypeAlias = Callable[
    [DraftTree, Float[Tensor, "row node n"], Sequence[list[int]]], tuple[list[list[Trial]], list[Tensor]]
]
"""From a tree, the target and the paths: each row's trials, and the residual at the end of its path."""


def _recursive(
    tree: DraftTree, target_logp: Float[Tensor, "row node n"], paths: Sequence[list[int]]
) -> tuple[list[list[Trial]], list[Tensor]]:
    """Trials under recursive rejection: at each node on the path, the children up to the accepted one."""
    inner = [(row, node) for row, path in enumerate(paths) for node in (0, *path) if tree.children[row][node]]
    residuals: dict[tuple[int, int], Tensor] = {}
    chances = torch.ones(tree.rows, tree.size, tree.branching + 1, dtype=torch.float64, device=target_logp.device)
    if inner:
        parents = parents_of(tree, inner)
        residual = weigh_children(tree, parents, torch.ones_like(chances[..., 0]), target_logp, chances)
        residuals.update(zip(zip(parents.rows, parents.nodes, strict=True), residual, strict=True))
    trials: list[list[Trial]] = []
    for row, (path, chance) in enumerate(zip(paths, chances[..., 0].tolist(), strict=True)):
        trials.append([])
        for depth, (node, kept) in enumerate(zip((0, *path), (*path, 0), strict=True), 1):
            for rank, child in enumerate(tree.children[row][node], 1):
                trials[-1].append(Trial(depth=depth, rank=rank, chance=chance[child], accepted=child == kept))
                if child == kept:
                    break
    return trials, [_last(residuals, target_logp, row, path) for row, path in enumerate(paths)]


def _traversal(
    tree: DraftTree, target_logp: Float[Tensor, "row node n"], paths: Sequence[list[int]]
) -> tuple[list[list[Trial]], list[Tensor]]:
    """Trials under traversal verification: the nodes in post-order, up to the end of the path."""
    weights = torch.ones(tree.rows, tree.size, dtype=torch.float64, device=target_logp.device)
    residuals: dict[tuple[int, int], Tensor] = {}
    for parents in inner_levels(tree):
        residual = weigh_children(tree, parents, weights, target_logp)
        residuals.update(zip(zip(parents.rows, parents.nodes, strict=True), residual, strict=True))
    trials, depths = [], tree.depths.tolist()
    for row, (path, chance) in enumerate(zip(paths, weights.tolist(), strict=True)):
        ranks = {child: rank for below in tree.children[row] for rank, child in enumerate(below, 1)}
        order, last = post_order(tree.children[row]), path[-1] if path else 0
        trials.append([
            Trial(depth=depths[row][node], rank=ranks[node], chance=chance[node], accepted=node == last)
            for node in order[: order.index(last) + 1]
            if node
        ])  # fmt: skip
    return trials, [_last(residuals, target_logp, row, path) for row, path in enumerate(paths)]


def _last(residuals: Mapping[tuple[int, int], Tensor], target_logp: Tensor, row: int, path: Sequence[int]) -> Tensor:
    """The residual at the end of a path.

    It is the target's own distribution where the last node has no children, or where rounding leaves nothing.
    """
    node = path[-1] if path else 0
    residual = residuals.get((row, node))
    return target_logp[row, node].exp() if residual is None or float(residual.sum()) <= 0 else residual


RANDOM_DRAWS: Final = DRAWS_WITH_LOG_PROBS - {Draw.POINT_MASS}
"""Draws that choose siblings at random from recorded distributions."""

RULES: Final[Mapping[str, Rule]] = {"recursive": _recursive, "traversal": _traversal}
"""Rules by the verifier's name. A matching verifier has none: it decides nothing at random."""


def decisions(this_round: Round, rule: Rule) -> list[Decision]:
    """Each row's verdict under this rule."""
    tree, target_logp, tokens = reduced(this_round.tree, this_round.target_log_probs)
    paths, last = this_round.paths, torch.tensor(list(this_round.verdict.next_tokens))
    columns = (last if tokens is None else torch.searchsorted(tokens.cpu(), last)).tolist()
    trials, residuals = rule(tree, target_logp, paths)
    ends = [path[-1] if path else 0 for path in paths]
    target = probs_at(target_logp, range(tree.rows), ends)
    return [
        Decision(
            trials=trials[row],
            residual=residuals[row],
            target=target[row],
            token=columns[row],
            after_rejection=bool(tree.children[row][ends[row]]),
        )
        for row in range(tree.rows)
    ]


def drafted(tree: DraftTree, generator: torch.Generator) -> list[tuple[int, float]]:
    """For each drawn node, its rank among its siblings from 1 on, and its PIT value in its recorded distribution.

    Tokens are ordered by id.
    """
    if tree.draft_log_probs is None or tree.draw not in RANDOM_DRAWS:
        return []
    probs = tree.draft_log_probs.dense().double().exp()
    cumulative = probs.cumsum(-1)
    out = []
    for row, children in enumerate(tree.children):
        for parent, below in enumerate(children[: probs.shape[1]]):
            if below:
                out += _siblings(tree, row, parent, probs[row, parent], cumulative[row, parent], generator)
    return out


def _siblings(
    tree: DraftTree, row: int, parent: int, probs: Tensor, cumulative: Tensor, generator: torch.Generator
) -> list[tuple[int, float]]:
    children = tree.children[row][parent]
    tokens = [tree.lists[0][row][child] for child in children]
    own, ends, total = probs[tokens].tolist(), cumulative[tokens].tolist(), float(cumulative[-1])
    shares = torch.rand(len(children), generator=generator, dtype=torch.float64).tolist()
    gone: dict[int, float] = {}
    out = []
    for rank, (token, p, end, share) in enumerate(zip(tokens, own, ends, shares, strict=True), 1):
        rest = total - sum(gone.values())
        if rest > _MIN_MASS:
            below = end - p - sum(q for other, q in gone.items() if other < token)
            out.append((rank, min(1.0, max(0.0, (below + share * p) / rest))))
        if tree.draw is Draw.WITHOUT_REPLACEMENT:
            gone[token] = p
    return out
