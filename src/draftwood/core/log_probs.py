"""Log-probabilities at the nodes of a tree, over the whole vocabulary or over the tokens that are possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias, cast, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import NumericsError

DeadEnds: TypeAlias = dict[tuple[int, int], Exception]
"""Rows and nodes at which the logits processors have no answer, and their errors."""


def sound(scores: Float[Tensor, "row node vocab"], log_probs: Sequence[Float[Tensor, "row _ _"]]) -> bool:
    """Whether every line of scores could be a distribution, and none of these is NaN (one host sync). A line cannot where a
    score is NaN or plus infinity, or none is finite; a distribution is NaN as a whole or not at all."""
    if _by_numpy(scores):
        most = np.maximum.reduce(scores.detach().numpy(), axis=-1)
        return math.isfinite(most.sum()) and not any(
            np.isnan(distribution.detach().numpy()[..., 0]).any() for distribution in log_probs
        )
    highest = scores.amax(dim=-1)
    return not math.isnan(
        torch.cat([highest - highest, *(distribution.select(-1, 0) for distribution in log_probs)], dim=1).sum()
    )


def _by_numpy(scores: Tensor) -> bool:
    """Whether NumPy takes them: on the host it is several times as fast as PyTorch, but knows no bfloat16."""
    return scores.is_cpu and scores.ndim > 1 and scores.dtype != torch.bfloat16


def best_tokens(scores: Float[Tensor, "*batch vocab"]) -> Int[Tensor, "*batch"]:
    """Where each line is largest; the first of equals."""
    if _by_numpy(scores):
        return torch.from_numpy(scores.detach().numpy().argmax(axis=-1))
    return scores.argmax(dim=-1)


@final
class LogProbs:
    """Log-probabilities of every node.

    Args:
        logp: log-probabilities; NaN where no token is possible.
        scores: instead of them, log-probabilities up to a constant of each node, over the whole vocabulary: the distribution
            itself is then made when it is needed.
        certain: instead of both, the only possible token of each node.
        tokens: whose log-probabilities they are; None for all tokens of the vocabulary in order. What is not named is
            impossible.
        vocab: tokens of the vocabulary.
        dead_ends: where processors have no answer; an error only if a text gets there.

    Attributes:
        certain: as it came.
        dead_ends: those of the target's nodes; none for a draft.
    """

    def __init__(
        self,
        *,
        logp: Float[Tensor, "row node n"] | None = None,
        scores: Float[Tensor, "row node vocab"] | None = None,
        certain: Int[Tensor, "row node"] | None = None,
        tokens: Int[Tensor, "row node n"] | None = None,
        vocab: int,
        dead_ends: DeadEnds | None = None,
    ) -> None:
        if (logp is None) + (scores is None) + (certain is None) != 2:
            raise ValueError("distributions are made of logp, scores or certain tokens, one of them")
        self._logp, self._scores, self.certain = logp, scores, certain
        self._tokens, self.vocab = tokens, vocab
        self.dead_ends: DeadEnds = dead_ends or {}

    @property
    def tokens(self) -> Int[Tensor, "row node n"] | None:
        """Whose the log-probabilities are; None for all tokens of the vocabulary in order."""
        return self._tokens if self.certain is None else self.certain.unsqueeze(-1)

    @property
    def logp(self) -> Float[Tensor, "row node n"]:
        """Log-probabilities."""
        if self.certain is not None:
            return torch.zeros(*self.certain.shape, 1, device=self.certain.device)
        if self._logp is None:
            self._logp, self._scores = cast(Tensor, self._scores).log_softmax(dim=-1), None
        return self._logp

    @property
    def scores(self) -> Float[Tensor, "row node n"]:
        """Log-probabilities up to a constant of each node: enough to choose the best token, with noise or without."""
        return self._scores if self._scores is not None else self.logp

    def check_reached(self, paths: Sequence[Sequence[int]]) -> None:
        """Raise the error of a dead end on one of these paths, which the texts now take.

        Args:
            paths: per row, nodes of the tree.
        """
        for row, path in enumerate(paths if self.dead_ends else ()):
            for node in path:
                if (row, node) in self.dead_ends:
                    raise self.dead_ends[row, node]

    def dense(self) -> Float[Tensor, "row node vocab"]:
        """Over the whole vocabulary."""
        if self.tokens is None:
            return self.logp
        return self.logp.new_full((*self.logp.shape[:2], self.vocab), -torch.inf).scatter_(-1, self.tokens, self.logp)

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
        """Tokens that are possible at some node, some of them several times; of distributions that name their tokens."""
        if self.tokens is None:
            raise ValueError("these distributions are over the whole vocabulary")
        return self.tokens[self.logp > -torch.inf]

    def on(self, columns: Int[Tensor, "u"]) -> Float[Tensor, "row node u"]:
        """Over these tokens, in rising order; they hold the support."""
        if self.tokens is None:
            return self.logp.index_select(2, columns)
        size = len(columns)
        out = self.logp.new_full((*self.logp.shape[:2], size + 1), -torch.inf)  # one more column for what is impossible
        place = torch.where(self.logp > -torch.inf, torch.searchsorted(columns, self.tokens.contiguous()), size)
        return out.scatter_(-1, place, self.logp)[..., :size]

    @staticmethod
    def joined(parts: Sequence[LogProbs]) -> LogProbs:
        """The nodes of all parts, in order."""
        widest = max(part.logp.shape[-1] for part in parts)
        logp = [_padded(part.logp, widest, -torch.inf) for part in parts]
        tokens = [_padded(part.tokens, widest, 0) for part in parts if part.tokens is not None]
        return LogProbs(
            logp=torch.cat(logp, dim=1), tokens=torch.cat(tokens, dim=1) if tokens else None, vocab=parts[0].vocab
        )


def _padded(values: Tensor, width: int, value: float) -> Tensor:
    missing = width - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=value) if missing else values


@final
class RoundChecks:
    """What a round computes and looks at later, with one host sync for all of it: the draft's distributions."""

    def __init__(self) -> None:
        self._drafted: list[tuple[Tensor, Tensor]] = []

    def note_draft(self, scores: Float[Tensor, "row node vocab"], log_probs: Float[Tensor, "row node n"]) -> None:
        """Scores of the draft and the distributions made of them; :meth:`check` looks at them."""
        self._drafted.append((scores, log_probs))

    def check(self, target: Float[Tensor, "row node vocab"]) -> None:
        """Look at the target's scores and at all that was noted.

        Raises:
            NumericsError: scores that are NaN, or a distribution without any possible token. A draft may have the latter.
        """
        if not sound(target, [distribution for _, distribution in self._drafted]):
            _name_the_trouble(self._drafted, target)


def _name_the_trouble(drafted: Sequence[tuple[Tensor, Tensor]], target: Tensor) -> None:
    """Raise a NumericsError, unless all that is NaN are distributions of a draft without any possible token."""
    for who, nan in [
        *(("draft", distribution[..., 0].isnan() & (scores != -torch.inf).any(dim=-1)) for scores, distribution in drafted),
        ("target", ~target.amax(dim=-1).isfinite()),
    ]:
        if bool(nan.any()):
            raise NumericsError(
                f"the {who} model's scores hold NaN or infinity, or no token is left possible. Try --dtype float32, and "
                "check logit_bias, penalties and logits processors"
            )
