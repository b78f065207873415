"""Log-probabilities at the nodes of a tree, over the whole vocabulary or over the tokens that are possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast, final

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from draftwood.core.errors import NumericsError

DeadEnds: TypeAlias = dict[tuple[int, int], Exception]
"""Rows and nodes after which no token can be chosen, and their errors: for want of scores, or by processors or a grammar."""
Cut: TypeAlias = Callable[[Float[Tensor, "*batch vocab"]], tuple[Float[Tensor, "*batch n"], Int[Tensor, "*batch n"] | None]]
"""Scores of the tokens that stay possible, -inf elsewhere, and their tokens, None for the whole vocabulary in order."""


def sound(
    scores: Float[Tensor, "row node vocab"],
    likeliest: Sequence[Float[np.ndarray | Tensor, "row _"]],
    highest: Float[Tensor, "row node"] | None = None,
) -> bool:
    """Whether every line of ``scores`` can become a distribution, and no number of ``likeliest`` is NaN (one host sync).

    A line of scores cannot if one of them is NaN or plus infinity, or if none is finite. ``highest`` is the largest score of
    each line, or NaN, where it is known.
    """
    highest = scores.amax(dim=-1) if highest is None else highest
    if highest.is_cpu:  # for a few numbers Python is quicker than array operations
        return math.isfinite(_sum(highest)) and not any(math.isnan(_sum(part)) for part in likeliest)
    parts = [highest - highest, *(torch.as_tensor(part, device=highest.device) for part in likeliest)]
    return not math.isnan(torch.cat([part.flatten() for part in parts]).sum())


def _sum(values: Any) -> float:
    return float(sum(map(sum, values.tolist())))


def lines_at(values: Shaped[Tensor, "row node n"], rows: Sequence[int], nodes: Sequence[int]) -> Shaped[Tensor, "line n"]:
    """The values at some nodes, one line each; they may share memory with ``values``."""
    if len(rows) == 1:
        return values[rows[0], nodes[0]].unsqueeze(0)
    index = torch.tensor([row * values.shape[1] + node for row, node in zip(rows, nodes, strict=True)], device=values.device)
    return values.flatten(0, 1).index_select(0, index)


@final
class LogProbs:
    """Log-probabilities at the nodes of a tree. Exactly one of ``logp``, ``scores``, ``certain`` and ``parts`` is given.

    Args:
        logp: log-probabilities; NaN at a node without any possible token.
        scores: log-probabilities up to a constant of each node, over the whole vocabulary or ``common``. They are cut and
            normalised when ``logp`` is first read.
        cut: what of ``scores`` stays possible; everything by default.
        certain: the only possible token of each node.
        parts: the distributions of some rows each, with the numbers of these rows. They are copied into one tensor when
            ``logp`` is first read.
        tokens: the token ids of ``logp``; None for the whole vocabulary in order. Tokens that are not listed are impossible.
        common, vocab: the same, where all nodes have the same tokens before the cut; number of tokens of the vocabulary.
        dead_ends: nodes without a distribution; an error only if a text gets there, which no draft may bring about.

    Attributes:
        certain, parts: as given.
        dead_ends: those of the target's nodes; none for a draft.
        likeliest: the largest log-probability of each node, where it was computed; NaN at a node without a possible token.

    Raises:
        ValueError: none or several of the four are given.
    """

    def __init__(
        self,
        *,
        logp: Float[Tensor, "row node n"] | None = None,
        scores: Float[Tensor, "row node vocab"] | None = None,
        cut: Cut | None = None,
        certain: Int[Tensor, "row node"] | None = None,
        parts: Sequence[tuple[Sequence[int], LogProbs]] | None = None,
        tokens: Int[Tensor, "row node n"] | None = None,
        common: Int[Tensor, "n"] | None = None,
        vocab: int,
        dead_ends: DeadEnds | None = None,
    ) -> None:
        if sum(form is None for form in (logp, scores, certain, parts)) != 3:  # a tensor == None throws in PyTorch
            raise ValueError("LogProbs takes logp, scores, certain tokens or parts: give exactly one of them")
        self.parts = parts
        self._logp, self._uncut, self._cut, self.certain = logp, scores, cut, certain
        self._scores = scores if cut is None else None
        self._tokens, self._common, self.vocab = tokens, common, vocab
        self.likeliest: Float[np.ndarray, "row node"] | None = None
        self.dead_ends: DeadEnds = dead_ends or {}

    @property
    def common(self) -> Int[Tensor, "n"] | None:
        """The tokens of all nodes; None where nodes have tokens of their own, as after a cut."""
        return self._common if self._cut is None else None

    @property
    def tokens(self) -> Int[Tensor, "row node n"] | None:
        """The token ids of ``logp``; None for the whole vocabulary in order."""
        if (common := self.common) is not None:
            return common.expand(*self.logp.shape)
        self._settle()
        return self._tokens if self.certain is None else self.certain.unsqueeze(-1)

    @property
    def logp(self) -> Float[Tensor, "row node n"]:
        """Normalised log-probabilities."""
        if self.certain is not None:
            return torch.zeros(*self.certain.shape, 1, device=self.certain.device)
        self._settle()
        if self._logp is None:
            self._logp = cast(Tensor, self._scores).log_softmax(dim=-1)
        return self._logp

    def _settle(self) -> None:
        """Apply the cut, and put the parts together."""
        if self.parts is not None and self._scores is None:
            self._scores = _rows_of(
                [(rows, part.scores if part.tokens is None else part.dense()) for rows, part in self.parts]
            )
        if self._cut is not None and self._scores is None:
            self._scores, self._tokens = self._after_cut(self._cut, cast(Tensor, self._uncut))

    def _after_cut(self, cut: Cut, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        values, tokens = cut(scores)
        if self._common is not None:
            tokens = self._common.expand(*values.shape) if tokens is None else self._common[tokens]
        return values, tokens

    @property
    def uncut(self) -> tuple[Float[Tensor, "row node n"], Cut | None, Int[Tensor, "n"] | None] | None:
        """Log-probabilities up to a constant of each node, the cut that is still to come, and the tokens, None for the whole
        vocabulary in order; None where nodes list tokens of their own, and of parts."""
        if self._uncut is not None:
            return self._uncut, self._cut, self._common
        return None if self._logp is None or self._tokens is not None else (self._logp, None, self._common)

    def line(self, row: int, node: int) -> tuple[Float[Tensor, "n"], Int[Tensor, "n"] | None]:
        """Log-probabilities at one node up to a constant, and their tokens, None for the whole vocabulary in order."""
        if self._uncut is not None and self._cut is not None:
            return self._after_cut(self._cut, self._uncut[row, node])
        tokens = self.tokens
        return self.scores[row, node], None if tokens is None else tokens[row, node]

    @property
    def scores(self) -> Float[Tensor, "row node n"]:
        """Log-probabilities up to a constant of each node: enough to choose the best token, with noise or without."""
        self._settle()
        return self._scores if self._scores is not None else self.logp

    def dead_end(self, row: int, path: Sequence[int]) -> tuple[int, Exception] | None:
        """The first dead end on a row's path: how many tokens come before it, and its error; None if there is none.

        Args:
            row: its number.
            path: nodes of the tree without the root, where every path begins.
        """
        nodes = enumerate((0, *path) if self.dead_ends else ())
        return next(((i, self.dead_ends[row, node]) for i, node in nodes if (row, node) in self.dead_ends), None)

    @property
    def on_host(self) -> bool:
        """Whether the numbers are in the host's memory."""
        given = self.certain if self.certain is not None else self._uncut if self._uncut is not None else self._logp
        return self.parts[0][1].on_host if given is None and self.parts else given is not None and given.is_cpu

    def require_all(self) -> None:
        """Raise the error of the first dead end, where a text runs through all nodes."""
        if self.dead_ends:
            raise self.dead_ends[min(self.dead_ends)]

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
        out = probs.new_zeros(len(probs), self.vocab)
        if self.common is not None:
            return out.index_copy_(1, self.common, probs)
        return out.scatter_add_(1, lines_at(self.tokens, rows, nodes), probs)

    def at(self, nodes: Sequence[int]) -> LogProbs:
        """The distributions of some nodes."""
        tokens = None if self.tokens is None else self.tokens[:, list(nodes)]
        return LogProbs(logp=self.logp[:, list(nodes)], tokens=tokens, vocab=self.vocab)

    def pick(self, nodes: Int[Tensor, "row m"]) -> LogProbs:
        """Per row, the distributions of some nodes."""
        row = torch.arange(len(nodes), device=nodes.device).unsqueeze(1)
        tokens = None if self.tokens is None else self.tokens[row, nodes]
        return LogProbs(logp=self.logp[row, nodes], tokens=tokens, vocab=self.vocab)

    def support(self) -> Int[Tensor, "m"]:
        """The tokens that are possible at some node, with repetitions, of distributions that list their tokens."""
        return cast(Tensor, self.tokens)[self.logp > -torch.inf]

    def on(self, columns: Int[Tensor, "u"]) -> Float[Tensor, "row node u"]:
        """Log-probabilities of the tokens ``columns``, given in rising order; they must contain the support."""
        if self.tokens is None:
            return self.logp.index_select(2, columns)
        size = len(columns)
        out = self.logp.new_full((*self.logp.shape[:2], size + 1), -torch.inf)  # one more column collects impossible tokens
        column = torch.where(self.logp > -torch.inf, torch.searchsorted(columns, self.tokens.contiguous()), size)
        return out.scatter_(-1, column, self.logp)[..., :size]

    @staticmethod
    def joined(parts: Sequence[LogProbs]) -> LogProbs:
        """The nodes of all parts, in order."""
        widest = max(part.logp.shape[-1] for part in parts)
        logp = [_padded(part.logp, widest, -torch.inf) for part in parts]
        tokens = [_padded(part.tokens, widest, 0) for part in parts if part.tokens is not None]
        return LogProbs(
            logp=torch.cat(logp, dim=1), tokens=torch.cat(tokens, dim=1) if tokens else None, vocab=parts[0].vocab
        )

    @staticmethod
    def of_rows(parts: Sequence[tuple[Sequence[int], LogProbs]], *, scores: bool) -> LogProbs:
        """The rows of all parts, each with the rows that its lines belong to.

        With ``scores`` they stay parts: only few nodes will be read.
        """
        dead = {(rows[r], node): e for rows, part in parts for (r, node), e in part.dead_ends.items()}
        vocab, first = parts[0][1].vocab, parts[0][1]
        if all(part.certain is not None for _, part in parts):
            certain = _rows_of([(rows, cast(Tensor, part.certain)) for rows, part in parts])
            return LogProbs(certain=certain, vocab=vocab, dead_ends=dead)
        if all(part.common is not None for _, part in parts):
            logp = _rows_of([(rows, part.logp) for rows, part in parts])
            return LogProbs(logp=logp, common=first.common, vocab=vocab, dead_ends=dead)
        if scores:
            return LogProbs(parts=parts, vocab=vocab, dead_ends=dead)
        logp = _rows_of([(rows, part.dense()) for rows, part in parts])
        return LogProbs(logp=logp, vocab=vocab, dead_ends=dead)


def _rows_of(parts: Sequence[tuple[Sequence[int], Tensor]]) -> Tensor:
    """One tensor of all rows, in the widest number format of the parts."""
    rows = [row for own, _ in parts for row in own]
    values = torch.cat([part for _, part in parts])
    order = torch.tensor(rows, device=values.device).argsort()
    return values.index_select(0, order)


def _padded(values: Tensor, width: int, value: int | float) -> Tensor:
    missing = width - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=value) if missing else values


@final
class RoundChecks:
    """What a round computes and looks at later, with one host sync for all of it: the draft's distributions.

    Attributes:
        draft_error: the draft's scores were NaN somewhere; nothing was drafted from these.
    """

    def __init__(self) -> None:
        self._drafted: list[tuple[Tensor, LogProbs]] = []
        self.draft_error: NumericsError | None = None

    def note_draft(self, scores: Float[Tensor, "row node vocab"], log_probs: LogProbs) -> None:
        """Scores of the draft and the distributions made of them; :meth:`check` looks at them."""
        self._drafted.append((scores, log_probs))

    def check(self, target: Float[Tensor, "row node vocab"], highest: Float[Tensor, "row node"] | None = None) -> DeadEnds:
        """Look at all that was noted, for :attr:`draft_error`, and at the target's scores; ``highest`` as in :func:`sound`.

        A draft may have no possible token at a node. Its distribution is then NaN, and its scores are all -inf.

        Returns:
            The nodes whose scores hold NaN or infinity, or leave no token possible.
        """
        likeliest = [one.logp[..., 0] if one.likeliest is None else one.likeliest for _, one in self._drafted]
        if sound(target, likeliest, highest):
            return {}
        pairs = zip(self._drafted, likeliest, strict=True)
        drafted = [(own, torch.as_tensor(best, device=own.device)) for (own, _), best in pairs]
        nan = [(best.isnan() & (own != -torch.inf).any(dim=-1)).any() for own, best in drafted]
        if any(map(bool, nan)):
            self.draft_error = _numerics_error("draft")
        return {(row, node): _numerics_error("target") for row, node in (~target.amax(dim=-1).isfinite()).nonzero().tolist()}


def _numerics_error(who: str) -> NumericsError:
    return NumericsError(
        f"the {who} model's scores hold NaN or infinity, or no token is left possible. Try --dtype float32, and check "
        "logit_bias, penalties and logits processors"
    )
