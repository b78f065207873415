"""Which children a candidate of a best-first tree gets, and what share of its value each of them has."""

from __future__ import annotations

import math
from typing import Final, Protocol, final, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rng import RoundRng
from draftwood.draft.foresight import Foresight
from draftwood.draft.outlook import acceptance
from draftwood.draft.pool import Grown
from draftwood.draft.shared_noise import shared_scores

_NEVER: Final = -float("inf")
_LEAST: Final = 1e-30
# Of a sibling's chance, once those before it were rejected: found on the bundled pair; any value is exact.
_LATER: Final = 0.5


@runtime_checkable
class Fan(Protocol):
    """Children for candidates.

    Attributes:
        name: as written on the command line.
        draw: how siblings are chosen.
        count: the most children of a node.
    """

    @property
    def name(self) -> str: ...

    @property
    def draw(self) -> Draw: ...

    @property
    def count(self) -> int: ...

    def expand(self, logp: Float[Tensor, "row n vocab"], rng: RoundRng, depth: int, first: int) -> list[list[Grown]]:
        """The children of ``n`` nodes of each row at this depth; ``first`` is the slot of noise of the first of them."""
        ...

    def learn(self, grown: Grown, choice: int) -> None:
        """The target's choice below a node was this token."""
        ...


@final
class SharedFan:
    """The children that the target's own noise favours; their shares are learnt (:class:`Foresight`).

    Args:
        count: the most children of a node.
        name: of the method, as written on the command line.
        draw: point masses where the temperature is 0: then there is no noise, the children are the draft's best, and every
            verifier is exact.
    """

    def __init__(self, count: int, name: str = "shared-noise", draw: Draw = Draw.SHARED_NOISE) -> None:
        self.count = count
        self.name = name
        self.draw = draw
        self._foresight = Foresight(count)

    def expand(self, logp: Float[Tensor, "row n vocab"], rng: RoundRng, depth: int, first: int) -> list[list[Grown]]:
        return self._best(shared_scores(logp, rng, depth), logp)

    def along(self, logp: Float[Tensor, "row place vocab"], rng: RoundRng, depth: int) -> list[list[Grown]]:
        """The children of one node of each depth from ``depth`` on; of any, where the draft's distribution depends on depth
        only."""
        return self._best(shared_scores(logp, rng, depth, logp.shape[1]), logp)

    def _best(self, perturbed: Float[Tensor, "row n vocab"], logp: Float[Tensor, "row n vocab"]) -> list[list[Grown]]:
        best = perturbed.topk(min(self.count, logp.shape[-1]), dim=-1)
        tokens, scores, surest = best.indices.tolist(), best.values.tolist(), logp.amax(-1).tolist()  # host sync
        rows = zip(tokens, scores, surest, strict=True)
        return [[self._grown(*node) for node in zip(*row, strict=True)] for row in rows]

    def _grown(self, tokens: list[int], scores: list[float], surest: float) -> Grown:
        possible = sum(score > _NEVER for score in scores)  # neither -inf nor NaN, and those stand last
        if not possible:
            return Grown([], [])
        scores = scores[:possible]
        return Grown(tokens[:possible], self._foresight.log_shares(scores, -surest), scores, -surest)

    def learn(self, grown: Grown, choice: int) -> None:
        at = grown.tokens.index(choice) if choice in grown.tokens else len(grown.tokens)
        self._foresight.learn(grown.scores, grown.doubt, at)


@final
class DrawnFan:
    """Children drawn without replacement. Their shares depend on the draft's distribution at the node and on how many were
    drawn before, not on which tokens came, so that a tree may be cut by them (see :mod:`draftwood.draft.best_first`)."""

    name = "dynamic"
    draw = Draw.WITHOUT_REPLACEMENT

    def __init__(self, count: int) -> None:
        self.count = count

    def expand(self, logp: Float[Tensor, "row n vocab"], rng: RoundRng, depth: int, first: int) -> list[list[Grown]]:
        drawn = rng.ordered(logp, self.count, first, 0).tolist()  # host sync
        best = logp.amax(dim=-1).exp().tolist()
        return [
            [_drawn([token for token in tokens if token >= 0], likeliest) for tokens, likeliest in zip(*row, strict=True)]
            for row in zip(drawn, best, strict=True)
        ]

    def learn(self, grown: Grown, choice: int) -> None:
        """Nothing: the same seed must give the same tree, whatever came before."""


def _drawn(tokens: list[int], likeliest: float) -> Grown:
    shares, left, accept = [], 1.0, acceptance(likeliest)
    for _ in tokens:
        shares.append(math.log(max(left * accept, _LEAST)))
        left *= 1.0 - accept
        accept *= _LATER
    return Grown(tokens, shares)
