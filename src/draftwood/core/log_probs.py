"""Distributions at the nodes of a tree: scores before the cut, and log-probabilities after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from draftwood.core.errors import NumericsError

DeadEnds: TypeAlias = dict[tuple[int, int], Exception]
"""Rows and nodes after which no token can be chosen, and their errors: for want of scores, or by processors or a grammar."""
Cut: TypeAlias = Callable[[Float[Tensor, "*batch vocab"]], tuple[Float[Tensor, "*batch n"], Int[Tensor, "*batch n"] | None]]
"""Scores of the tokens that stay possible, -inf elsewhere, and their tokens, None for the whole vocabulary in order."""


def best_alone(scores: Float[Tensor, "*batch vocab"]) -> tuple[Float[Tensor, "*batch 1"], Int[Tensor, "*batch 1"]]:
    """The cut of temperature 0: the best token, the first one if several are best.

    Of scores: in log-probabilities, close scores may round to a tie.
    """
    if scores.is_cpu:  # where NumPy is several times as fast
        best = torch.as_tensor(scores.detach().numpy().argmax(axis=-1)).unsqueeze(-1)
    else:
        best = scores.argmax(dim=-1, keepdim=True)
    return torch.zeros_like(best, dtype=scores.dtype), best


def highest_of(scores: Float[Tensor, "row node n"]) -> Float[Tensor, "row node"]:
    """The highest score of each line; NaN if one is."""
    if scores.is_cpu:  # as in best_alone
        return torch.as_tensor(scores.detach().numpy().max(axis=-1))
    return scores.amax(dim=-1)


def lines_at(values: Shaped[Tensor, "row node n"], rows: Sequence[int], nodes: Sequence[int]) -> Shaped[Tensor, "line n"]:
    """The values at some nodes, one line each; they may share memory with ``values``."""
    if len(rows) == 1:
        return values[rows[0], nodes[0]].unsqueeze(0)
    index = torch.tensor([row * values.shape[1] + node for row, node in zip(rows, nodes, strict=True)], device=values.device)
    return values.flatten(0, 1).index_select(0, index)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Distributions:
    """Normalised log-probabilities at the nodes of a tree.

    Attributes:
        logp: NaN at a node without any possible token.
        tokens: the token ids of ``logp``; None for the whole vocabulary in order. Other tokens are impossible.
        vocab: number of tokens of the vocabulary.
    """

    logp: Float[Tensor, "row node n"]
    tokens: Int[Tensor, "row node n"] | None = None
    vocab: int

    def dense(self) -> Float[Tensor, "row node vocab"]:
        """Log-probabilities over the whole vocabulary; -inf for impossible tokens."""
        if self.tokens is None:
            return self.logp
        return self.logp.new_full((*self.logp.shape[:2], self.vocab), -torch.inf).scatter_(-1, self.tokens, self.logp)

    def probs(self, rows: Sequence[int], nodes: Sequence[int]) -> Float[Tensor, "line vocab"]:
        """The probabilities at some nodes over the whole vocabulary, one line each, in memory of their own."""
        probs = lines_at(self.logp, rows, nodes).exp()
        if self.tokens is None:
            return probs
        return probs.new_zeros(len(probs), self.vocab).scatter_(1, lines_at(self.tokens, rows, nodes), probs)

    def at(self, nodes: Sequence[int]) -> Distributions:
        """The distributions of some nodes."""
        tokens = None if self.tokens is None else self.tokens[:, list(nodes)]
        return Distributions(logp=self.logp[:, list(nodes)], tokens=tokens, vocab=self.vocab)

    def pick(self, nodes: Int[Tensor, "row m"]) -> Distributions:
        """Per row, the distributions of some nodes."""
        row = torch.arange(len(nodes), device=nodes.device).unsqueeze(1)
        tokens = None if self.tokens is None else self.tokens[row, nodes]
        return Distributions(logp=self.logp[row, nodes], tokens=tokens, vocab=self.vocab)

    def on(self, columns: Int[Tensor, "u"]) -> Float[Tensor, "row node u"]:
        """Log-probabilities of the tokens ``columns``, given in rising order; they must contain all possible tokens."""
        if self.tokens is None:
            return self.logp.index_select(2, columns)
        size = len(columns)
        out = self.logp.new_full((*self.logp.shape[:2], size + 1), -torch.inf)  # one more column collects impossible tokens
        column = torch.where(self.logp > -torch.inf, torch.searchsorted(columns, self.tokens.contiguous()), size)
        return out.scatter_(-1, column, self.logp)[..., :size]

    @staticmethod
    def joined(parts: Sequence[Distributions]) -> Distributions:
        """The nodes of all parts, in order."""
        widest = max(part.logp.shape[-1] for part in parts)
        logp = torch.cat([_padded(part.logp, widest) for part in parts], dim=1)
        tokens = [_padded(part.tokens, widest) for part in parts if part.tokens is not None]
        return Distributions(logp=logp, tokens=torch.cat(tokens, dim=1) if tokens else None, vocab=parts[0].vocab)


def _padded(values: Tensor, width: int) -> Tensor:
    """The last column is repeated: a token that is listed twice has one probability."""
    missing = width - values.shape[-1]
    return torch.cat([values, values[..., -1:].expand(*values.shape[:-1], missing)], dim=-1) if missing else values


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pending:
    """Scores at the nodes of a tree, which are cut and normalised where somebody reads them.

    Attributes:
        scores: log-probabilities up to a constant of each node.
        cuts: per row, what of the scores stays possible; None for everything.
        tokens: the token ids of the scores; None for the whole vocabulary in order. Other tokens are impossible.
        vocab: number of tokens of the vocabulary.
        dead_ends: nodes without a distribution; an error only if a text gets there, which no draft may bring about.
        best: the best token of each node, where it is known.
        note: of a draft: it takes the highest scores where they are read, unless the reader has seen that none is NaN.
    """

    scores: Float[Tensor, "row node scored"]
    cuts: Sequence[Cut | None]
    tokens: Int[Tensor, "scored"] | None = None
    vocab: int
    dead_ends: DeadEnds = field(default_factory=dict)
    best: Int[np.ndarray, "row node"] | None = None
    note: Callable[[Float[Tensor, "row node"]], None] | None = None

    @property
    def certain(self) -> bool:
        """Whether all rows have temperature 0."""
        return all(cut is best_alone for cut in self.cuts)

    def possible(
        self, row: int, nodes: int | Sequence[int]
    ) -> tuple[Float[Tensor, "*node n"], Int[Tensor, "*node n"] | None]:
        """The scores that the row's cut leaves at some nodes, and their tokens, None for the whole vocabulary in order."""
        return self._cut(self.scores[row, nodes], self.cuts[row])

    def _cut(self, scores: Tensor, cut: Cut | None) -> tuple[Tensor, Tensor | None]:
        values, tokens = (scores, None) if cut is None else cut(scores)
        if self.tokens is not None:
            tokens = self.tokens.expand(values.shape) if tokens is None else self.tokens[tokens]
        return values, tokens

    def look(self) -> None:
        """Give the highest scores to :attr:`note`."""
        if self.note is not None:
            self.note(highest_of(self.scores))

    @cached_property
    def settled(self) -> Distributions:
        """The distributions at all nodes. They list their tokens where all rows have one cut that does."""
        self.look()
        if any(cut != self.cuts[0] for cut in self.cuts):
            logp = torch.cat([self._settled(self.scores[row, None], cut).dense() for row, cut in enumerate(self.cuts)])
            return Distributions(logp=logp, vocab=self.vocab)
        return self._settled(self.scores, self.cuts[0])

    def _settled(self, scores: Tensor, cut: Cut | None) -> Distributions:
        values, tokens = self._cut(scores, cut)
        return Distributions(logp=values.log_softmax(dim=-1), tokens=tokens, vocab=self.vocab)

    def dead_end(self, row: int, path: Sequence[int]) -> tuple[int, Exception] | None:
        """The first dead end on a row's path: how many tokens come before it, and its error; None if there is none.

        Args:
            row: its number.
            path: nodes of the tree without the root, where every path begins.
        """
        nodes = enumerate((0, *path) if self.dead_ends else ())
        return next(((i, self.dead_ends[row, node]) for i, node in nodes if (row, node) in self.dead_ends), None)

    def require_all(self) -> None:
        """Raise the error of the first dead end, where a text runs through all nodes."""
        if self.dead_ends:
            raise self.dead_ends[min(self.dead_ends)]


@final
class RoundChecks:
    """What a round computes and looks at later, with one host sync for all of it: the draft's highest scores.

    Attributes:
        draft_error: the draft's scores were NaN somewhere; nothing was drafted from these.
    """

    def __init__(self) -> None:
        self._drafted: list[Float[Tensor, "row node"]] = []
        self.draft_error: NumericsError | None = None

    def note_draft(self, highest: Float[Tensor, "row node"]) -> None:
        """The draft's highest score of each node; :meth:`check` looks at it. It may be -inf: no token is possible there."""
        self._drafted.append(highest.clamp(min=0.0))

    def check(self, target: Float[Tensor, "row node vocab"], known: Float[np.ndarray, "row node"] | None = None) -> DeadEnds:
        """Look at all that was noted, for :attr:`draft_error`, and at the target's scores.

        Args:
            target: its scores. A line cannot become a distribution if a score is NaN or infinity, or if none is finite.
            known: the highest of each line, or NaN, where it is known.

        Returns:
            The nodes whose scores hold NaN or infinity, or leave no token possible.
        """
        if known is not None and not self._drafted and math.isfinite(_sum(known)):
            return {}
        highest = highest_of(target)
        if _finite([highest, *self._drafted]):
            return {}
        if not _finite(self._drafted):
            self.draft_error = _numerics_error("draft")
        return {(row, node): _numerics_error("target") for row, node in (~highest.isfinite()).nonzero().tolist()}


def _finite(parts: Sequence[Float[Tensor, "row _"]]) -> bool:
    """Whether all numbers are finite (one host sync)."""
    if all(part.is_cpu for part in parts):  # for a few numbers Python is quicker than array operations
        return all(math.isfinite(_sum(part)) for part in parts)
    return not math.isnan(torch.cat([(part - part).flatten() for part in parts]).sum())


def _sum(values: Any) -> float:
    return float(sum(map(sum, values.tolist())))


def _numerics_error(who: str) -> NumericsError:
    return NumericsError(
        f"the {who} model's scores hold NaN or infinity, or no token is left possible. Try --dtype float32, and check "
        "logit_bias, penalties and logits processors"
    )
