"""How deep a drawn tree goes: another level is drawn only where enough accepted tokens are expected of it.

What is expected comes from the draft's own distributions: at a node whose likeliest token has probability ``c``, one draw is
taken to be accepted with probability ``a = (1 + c c) / 2`` (a form found on the bundled pair, where it is right within some
0.16 at temperatures 0, 0.6 and 1; any other would be as exact, and only end trees earlier or later), each of several
children with ``a`` again where those before it were rejected, and a path with the product of its children's shares.

Why this is exact. Whether a place in the tree exists may depend on anything except the token drawn there and what is drawn
below it. The decision on a level is made before any of its tokens is drawn, for all of a row's places of that level at once,
from the distributions and the numbers of children of nodes that stand already. Given the levels above, the tokens of a level
that is drawn follow the distributions that are recorded, and a level that is not drawn is as if the tree had been asked to
be that short. A level that was drawn is never taken back, however unlikely its tokens. The decision is a function of the row
alone: not of its neighbours in a batch, of times or of what other requests taught, so that the same seed gives the same
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def acceptance(likeliest: float) -> float:
    """What the probability is taken to be that a draw is accepted from a distribution with this largest probability."""
    return (1 + likeliest * likeliest) / 2


@final
class ExpectedGain:
    """What to expect of the next level of each row's tree, kept as plain numbers.

    Args:
        least: accepted tokens that a level must be expected to bring, from 0 to 1.
        rows: how many rows.
    """

    def __init__(self, least: float, rows: int) -> None:
        self._least = least
        self._reach = [[1.0] for _ in range(rows)]  # estimated probability that the path to a newest node is accepted
        self._accept: list[list[float]] = []  # and that one draw below it is

    @property
    def open(self) -> bool:
        """Whether some row goes on."""
        return any(map(any, self._reach))

    def worth(self, logp: Float[Tensor, "row n vocab"], children: int) -> Float[Tensor, "row n vocab"]:
        """The distributions at the newest nodes, impossible in rows that end here; a node would get about so many
        children."""
        best = logp.amax(dim=-1).exp().nan_to_num(0.0).tolist()  # host sync
        self._accept = [[acceptance(c) if c else 0.0 for c in row] for row in best]
        for row, (reach, accept) in enumerate(zip(self._reach, self._accept, strict=True)):
            gain = sum(r * (1 - (1 - a) ** children) for r, a in zip(reach, accept, strict=True))
            if gain < self._least:
                self._reach[row] = [0.0] * len(reach)
        stops = [not any(reach) for reach in self._reach]
        if any(stops):
            logp = logp.masked_fill(torch.tensor(stops, device=logp.device)[:, None, None], -torch.inf)
        return logp

    def descend(
        self, tokens: Sequence[list[int]], parents: Sequence[list[int]], drawn: Bool[Tensor, "row n"] | None
    ) -> None:
        """The next level stands: -1 where there is no node, places of parents among the nodes above, and in hybrid trees
        which were drawn: of them less is expected than of their certain siblings, so that their turn comes last."""
        late = [[False] * len(row) for row in tokens] if drawn is None else drawn.tolist()
        for row, (token, parent, last) in enumerate(zip(tokens, parents, late, strict=True)):
            left, accept = self._reach[row], self._accept[row]
            self._reach[row] = [0.0] * len(token)
            for place in sorted(range(len(token)), key=last.__getitem__):
                if token[place] >= 0:
                    above = parent[place]
                    self._reach[row][place] = left[above] * accept[above]
                    left[above] -= self._reach[row][place]
