"""The common loop of drawn trees: one forward of the draft model per level."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.log_probs import Distributions, Pending
from draftwood.core.rng import RoundRng, drawing_space
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree, TreeBuilder
from draftwood.draft.none import FAILED
from draftwood.runners.protocols import Runner
from draftwood.sampling.sampler import Sampler


class Level(NamedTuple):
    """The newest nodes of a growing tree.

    Attributes:
        depth: their depth.
        first: the number of the first node.
        tokens: -1 where there is no node.
        parents: indices within the level above.
        phi, times: log-probability and arrival time of each node's path; None outside beams and at the root.
    """

    depth: int
    first: int
    tokens: Int[Tensor, "row n"]
    parents: Int[Tensor, "row n"]
    phi: Float[Tensor, "row n"] | None = None
    times: Float[Tensor, "row n"] | None = None

    def below(self, tokens: Int[Tensor, "row m"], parents: Int[Tensor, "row m"], *path: Float[Tensor, "row m"]) -> Level:
        """The next level; in beams with its log-probabilities and times."""
        return Level(self.depth + 1, self.first + self.tokens.shape[1], tokens, parents, *path)

    def below_each(self, tokens: Int[Tensor, "row n count"]) -> Level:
        """The next level from every node's children; -1 where there is no child."""
        rows, n, count = tokens.shape
        parents = torch.arange(n, device=tokens.device).repeat_interleave(count).expand(rows, -1)
        return self.below(tokens.flatten(1), parents)


@runtime_checkable
class LevelPolicy(Protocol):
    """Gives one level of nodes its children.

    Attributes:
        name, draw: as of :class:`draftwood.draft.Drafter`.
        widths: nodes per level, from depth 1 on.
    """

    name: str
    draw: Draw
    widths: tuple[int, ...]

    def expand(self, level: Level, logp: Float[Tensor, "row n vocab"], rng: RoundRng) -> Level:
        """The next level, given the draft's log-probabilities at this one."""
        ...


@final
class LevelDrafter:
    """Grows a tree level by level with a draft model.

    Args:
        runner: the draft model.
        policy: gives a level its children.
    """

    def __init__(self, runner: Runner, policy: LevelPolicy) -> None:
        self.runner = runner
        self.policy = policy
        self.name, self.draw = policy.name, policy.draw
        self._evaluated = 0
        self._sizes = list(accumulate(policy.widths))  # nodes of the first level, of the first two, ...

    def draft(self, root: Sequence[int], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        sizes = self._sizes
        most = [len(sizes) if row.nodes is None else bisect_right(sizes, row.nodes) for row in sampler.rows]
        limits = [*map(min, limits, most)]
        widths = self.policy.widths[: max(limits)]
        builder = TreeBuilder(root)
        roots = torch.tensor([[int(token)] for token in root], device=self.runner.device)
        level = Level(0, 0, roots, torch.zeros_like(roots))
        drafted = [[0]] * len(limits)  # a root never ends the text
        scores: list[Pending] = []
        self._evaluated, stop, failure = 0, None, None
        for _ in widths:
            try:
                scores.append(self._score(builder, sampler))
            except Exception as error:  # the levels so far stay: their nodes were drawn before anything read them
                stop, failure = FAILED, error
                break
            logp, columns_rng, tokens_of = drawing_space(scores[-1], rng)
            possible = _possible(logp, drafted, level.depth, sampler, limits)
            level = self.policy.expand(level, possible, columns_rng)
            level = level._replace(tokens=tokens_of(level.tokens))
            drafted, above = torch.stack([level.tokens, level.parents]).tolist()  # host sync
            builder.add(drafted, above)
            if max(map(max, drafted)) < 0:
                stop = "no token is left possible"
                break
        return builder.build(
            draw=Draw.POINT_MASS if sampler.greedy else self.draw,
            ranking=partial(_joined, scores) if scores else None,
            stop=stop,
            error=failure,
        )

    def _score(self, builder: TreeBuilder, sampler: Sampler) -> Pending:
        """The draft's distributions at the newest level."""
        scores = self.runner.extend(*builder.nodes(builder.first))
        self._evaluated = builder.size
        return sampler.draft(scores.logits, partial(builder.prefixes, builder.first), scores.tokens)

    def commit(self, this_round: Round) -> None:
        seen = [[node for node in chain if node < self._evaluated] for chain in this_round.joined]
        self.runner.commit(seen, this_round.hidden)


def _joined(levels: Sequence[Pending]) -> Distributions:
    return Distributions.joined([level.settled for level in levels])


def _possible(
    logp: Float[Tensor, "row n vocab"], drafted: list[list[int]], depth: int, sampler: Sampler, limits: Sequence[int]
) -> Float[Tensor, "row n vocab"]:
    """The distributions to draw from: no token below padding or a token that ends the text, nor beyond a row's limit.

    Each row has its own limit, so its text never depends on its neighbours.
    """
    blocked = [
        [limit <= depth or token < 0 or (depth > 0 and token in row.stops) for token in tokens]
        for tokens, limit, row in zip(drafted, limits, sampler.rows, strict=True)
    ]
    if any(map(any, blocked)):
        logp = logp.masked_fill(torch.tensor(blocked, device=logp.device).unsqueeze(-1), -torch.inf)
    return logp
