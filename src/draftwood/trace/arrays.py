"""The small part of a round's tensors: the likeliest tokens, and the probabilities of drafted tokens."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.trace.records import Distribution
from draftwood.verify.sparse import reduced

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_BLOCK: Final = 64


def best_of(values: Float[Tensor, "*batch n"], count: int) -> tuple[Float[Tensor, "*batch k"], Int[Tensor, "*batch k"]]:
    """The ``count`` largest values of each line and their indices, largest first, and equal values by rising index.

    They are in the blocks of the ``count`` largest maxima, so most of a line is read once and never sorted.
    """
    n = values.shape[-1]
    count, blocks = min(count, n), n // _BLOCK
    if blocks < 4 * count:
        return _best(values, count)
    cut = blocks * _BLOCK
    by_block = values[..., :cut].unflatten(-1, (blocks, _BLOCK))
    chosen = _best(by_block.amax(dim=-1), count)[1].sort(dim=-1).values
    indices = (chosen.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=values.device)).flatten(-2)
    if cut < n:
        rest = torch.arange(cut, n, device=values.device).expand(*indices.shape[:-1], -1)
        indices = torch.cat([indices, rest], dim=-1)
    found, at = _best(values.gather(-1, indices), count)
    return found, indices.gather(-1, at)


def _best(values: Float[Tensor, "*batch n"], count: int) -> tuple[Float[Tensor, "*batch k"], Int[Tensor, "*batch k"]]:
    """As :func:`best_of`, at once (one host sync)."""
    best, indices = values.topk(min(count + 1, values.shape[-1]), dim=-1)
    tied = (best[..., 1:] == best[..., :-1]).any(dim=-1)
    best, indices = best[..., :count], indices[..., :count].contiguous()
    for line in tied.nonzero().tolist():
        own = values[tuple(line)]
        at = (own >= best[(*line, -1)]).nonzero().squeeze(-1)
        indices[tuple(line)] = at[own[at].sort(descending=True, stable=True).indices[:count]]
    return best, indices


def distributions(logp: Float[Tensor, "node n"], columns: Int[Tensor, "n"] | None, count: int) -> list[Distribution]:
    """The likeliest tokens at each node.

    Args:
        logp: log-probabilities; NaN where there is no distribution.
        columns: the token ids of the columns; None where columns are tokens.
        count: the most tokens of a node.
    """
    values, indices = best_of(logp, count)
    return _listed(values.double().exp().nan_to_num_(0.0), indices, columns)


def _listed(
    probs: Float[Tensor, "node k"], indices: Int[Tensor, "node k"], columns: Int[Tensor, "n"] | None
) -> list[Distribution]:
    """The likeliest tokens, given by their columns."""
    tokens = indices if columns is None else columns[indices]
    return [_distribution(*line) for line in zip(tokens.tolist(), probs.clamp(max=1.0).tolist(), strict=True)]


def _distribution(tokens: list[int], probs: list[float]) -> Distribution:
    while probs and probs[-1] <= 0.0:
        probs.pop()
    return Distribution(tokens=tokens[: len(probs)], probs=probs, rest=min(1.0, max(0.0, 1.0 - sum(probs))))


@final
class RoundArrays:
    """A round with its distributions on one list of tokens, the columns.

    Args:
        made: the round.

    Attributes:
        tree: the round's, with columns as tokens.
        target: log-probabilities of the target, in float32 or better.
        columns: the token ids of the columns; None where columns are tokens.
    """

    def __init__(self, made: Round) -> None:
        self.made = made
        self.tree, values, self.columns = reduced(made.tree, made.target)
        self.target: Float[Tensor, "row node n"] = values if values.dtype == torch.float64 else values.float()

    @cached_property
    def draft(self) -> Float[Tensor, "row inner vocab"] | None:
        """The draft's log-probabilities at the first nodes, -inf where it has none; None without any."""
        if (ranking := self.made.tree.ranking) is None:
            return None
        found = ranking().dense()
        return found.masked_fill(found.isnan(), -torch.inf)

    def target_distributions(self, row: int, count: int) -> list[Distribution]:
        """At every node of a row."""
        return distributions(self.target[row], self.columns, count)

    def draft_distributions(self, row: int, count: int) -> list[Distribution]:
        """At the first nodes of a row, arbitrary at those without children; empty without a draft model."""
        return [] if self.draft is None else distributions(self.draft[row], None, count)

    def target_probs(self, row: int) -> list[float]:
        """The probability of each node's token at its parent, by the target."""
        return self._probs_of(self.tree, self.target, row)

    def draft_probs(self, row: int) -> list[float]:
        """The same by the draft; only where a draft model gave distributions."""
        assert self.draft is not None
        return self._probs_of(self.made.tree, self.draft, row)

    @staticmethod
    def _probs_of(tree: DraftTree, logp: Float[Tensor, "row inner n"], row: int) -> list[float]:
        parents, tokens = (torch.as_tensor(part[row], device=logp.device) for part in (tree.parents, tree.tokens))
        found = logp[row, parents.clamp(max=logp.shape[1] - 1), tokens]
        probs: list[float] = found.double().exp().nan_to_num_(0.0).clamp_(max=1.0).tolist()
        return probs

    def target_vector(self, row: int, node: int) -> Vector:
        """The target's probabilities at a node, over the columns."""
        return _probs(self.target[row, node])

    def proposal_vector(self, row: int, node: int) -> Vector | None:
        """The draft's probabilities at a node, over the columns; None where children are certain."""
        if (found := self.tree.draft_logp) is None:
            return None
        probs = _probs(found[row, min(node, found.shape[1] - 1)])
        return probs / (probs.sum() or 1.0)

    def distribution(self, vector: Vector, count: int) -> Distribution:
        """The likeliest tokens of a vector over the columns; without any it is not read."""
        if not count:
            return Distribution(tokens=[], probs=[], rest=1.0)
        columns = None if self.columns is None else self.columns.cpu()
        [found] = _listed(*best_of(torch.from_numpy(vector[None]), count), columns)
        return found


def _probs(logp: Float[Tensor, "n"]) -> Vector:
    probs: Vector = logp.detach().double().cpu().exp().nan_to_num_(0.0).numpy()
    return probs
