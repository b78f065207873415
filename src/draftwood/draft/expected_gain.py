"""The depth of a drawn tree: another level is drawn only where it is expected to bring enough accepted tokens.

The expectation is an estimate from the draft's own distributions. At a node whose likeliest token has probability ``c``, a
draw is accepted with probability ``a = (1 + c c) / 2``. Each further child is accepted with ``a`` if those before it were
rejected, and a path with the product along it. The form was found on the bundled pair, where its error is within some 0.16
at temperatures 0, 0.6 and 1. Another form would be as exact, and only end trees earlier or later.

Why this is exact: the existence of a drawn node may depend on anything except its own token and the tokens below it. The
decision on a row's level is made before any of its tokens is drawn. It depends on the distributions and numbers of children
of existing nodes only. Given the levels above, the tokens of a drawn level follow the recorded distributions. A level that
is not drawn makes the tree shorter, and a drawn level is never removed. The decision depends on the row alone, not on its
neighbours, on times or on other requests, so the same seed gives the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


def acceptance(likeliest: float) -> float:
    """Estimated probability that a draw is accepted, given the largest probability of its distribution."""
    return (1 + likeliest * likeliest) / 2


@final
class ExpectedGain:
    """Expected accepted tokens of the next level of each row's tree, as plain numbers.

    Args:
        min_gain: the least expected accepted tokens of a level, from 0 to 1.
        rows: number of rows.
    """

    def __init__(self, min_gain: float, rows: int) -> None:
        self._min_gain = min_gain
        self._reach = [[1.0] for _ in range(rows)]  # of each newest node, the probability that its path is accepted
        self._accept: list[list[float]] = []  # of each newest node, the probability that one draw below it is

    @property
    def open(self) -> bool:
        """True while any row has another level."""
        return any(map(any, self._reach))

    def mask(self, logp: Float[Tensor, "row n vocab"], children: int) -> Float[Tensor, "row n vocab"]:
        """The distributions at the newest nodes, without any possible token in rows that end here.

        ``children`` is the approximate number of children per node.
        """
        best = logp.amax(dim=-1).exp().nan_to_num(0.0).tolist()  # host sync
        self._accept = [[acceptance(c) if c else 0.0 for c in row] for row in best]
        for row, (reach, accept) in enumerate(zip(self._reach, self._accept, strict=True)):
            gain = sum(r * (1 - (1 - a) ** children) for r, a in zip(reach, accept, strict=True))
            if gain < self._min_gain:
                self._reach[row] = [0.0] * len(reach)
        ended = [not any(reach) for reach in self._reach]
        if any(ended):
            logp = logp.masked_fill(torch.tensor(ended, device=logp.device)[:, None, None], -torch.inf)
        return logp

    def descend(self, tokens: Sequence[list[int]], parents: Sequence[list[int]]) -> None:
        """Go on to the next level.

        Args:
            tokens: -1 where there is no node.
            parents: indices of parents within the level above.
        """
        for row, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            left, accept = self._reach[row], self._accept[row]
            self._reach[row] = [0.0] * len(token)
            for i, above in enumerate(parent):
                if token[i] >= 0:
                    self._reach[row][i] = left[above] * accept[above]
                    left[above] -= self._reach[row][i]
