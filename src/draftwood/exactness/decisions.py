"""The random decisions of a round, and the probabilities that they should have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.trace.arrays import RoundArrays
from draftwood.trace.walks import WALKS

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


RANDOM_DRAWS: Final = DRAWS_WITH_LOG_PROBS - {Draw.POINT_MASS}
"""Draws that choose siblings at random from recorded distributions."""


def decisions(this_round: Round, verifier: str) -> list[Decision]:
    """Each row's verdict, with a verifier of :data:`draftwood.trace.walks.WALKS`."""
    arrays = RoundArrays(this_round, argmax=False)
    tree, last = arrays.tree, torch.tensor(list(this_round.verdict.next_tokens))
    columns = (last if arrays.columns is None else torch.searchsorted(arrays.columns.cpu(), last)).tolist()
    found, depths = [], tree.depths.tolist()
    for row, path in enumerate(this_round.paths):
        walk, end, children = WALKS[verifier](arrays, row, path), path[-1] if path else 0, tree.children[row]
        ranks = {child: rank for below in children for rank, child in enumerate(below, 1)}
        target = torch.from_numpy(arrays.target_vector(row, end))
        trials = [
            Trial(depth=depths[row][test.node], rank=ranks[test.node], chance=test.chance, accepted=test.node in path)
            for test in walk.tests
        ]
        found.append(
            Decision(
                trials=trials,
                residual=target if walk.last is None else torch.from_numpy(walk.last),
                target=target,
                token=columns[row],
                after_rejection=bool(children[end]),
            )
        )
    return found


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
    tokens = [tree.host.tokens[row][child] for child in children]
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
