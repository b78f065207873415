"""The sampled distributions of a batch, whose rows have settings of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.core.log_probs import LogProbs, RoundChecks
from draftwood.core.scores import Peaks
from draftwood.sampling.processing import permits
from draftwood.sampling.processors import may_forbid
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from draftwood.sampling.warping import Paths, Prefixes, Warper


@final
class Sampler:
    """The rows of a batch and their settings. Rows with equal settings are computed together.

    Args:
        rows: the texts.
        vocab: the size of the target's vocabulary; draft logits are padded or cut to it.
        device: where processors run on guesses.

    Attributes:
        greedy: every row has temperature 0.
        looks_back: the distribution of some row depends on the prefix of a node, not only on its scores.
        checks: the checks of this round, from :meth:`for_round`; None outside a round.

    Raises:
        ConfigError: a grammar without a constraint.
    """

    def __init__(self, rows: Sequence[Row], vocab: int, device: torch.device | None = None) -> None:
        self.rows = list(rows)
        self.vocab = vocab
        self.device = device or torch.device("cpu")
        self.greedy = all(row.sampling.greedy for row in rows)
        self.looks_back = any(row.sampling.looks_back for row in rows)
        self.checks: RoundChecks | None = None
        for row in rows:
            if (grammar := row.sampling.grammar) is not None and row.constraint is None:
                raise ConfigError(f"{grammar.name} has no constraint here: only a decoder's batch applies a grammar")
        self._groups = [
            (numbers, Warper(sampling, [self.rows[i] for i in numbers], vocab))
            for sampling, numbers in _alike([row.sampling for row in rows])
        ]

    def for_round(self) -> Sampler:
        """A copy for one round, with checks that the drafter and the target share."""
        own = Sampler.__new__(Sampler)
        vars(own).update(vars(self))  # copy() takes ten times as long
        own.checks = RoundChecks()
        return own

    def permitted(self, row: int, tokens: Sequence[int]) -> int:
        """How many of the guessed next tokens of a row the settings permit.

        A token is forbidden by a bias of minus infinity, or by a processor under which it stays impossible even if the model
        is almost certain of it. Settings that depend on the true scores, such as top-k, forbid nothing. No processor runs
        after a forbidden token or after the end of the text.
        """
        own = self.rows[row]
        if (constraint := own.followed()) is not None:
            tokens = tokens[: constraint.permitted(tokens)]
        bias = own.sampling.logit_bias or {}
        processors = [one for one in own.bound(own.sampling.processors) if may_forbid(one)]
        if not bias and not processors:
            return len(tokens)
        for i, token in enumerate(tokens):
            if bias.get(token) == -math.inf:
                return i
            if processors and not permits(processors, [*own.tokens, *tokens[:i]], token, self.vocab, self.device):
                return i
            if token in own.stops:
                return i + 1
        return len(tokens)

    def forced(self, row: int) -> list[int]:
        """Tokens of the only text that the grammar of a row admits next, as a guess; none without a grammar."""
        constraint = self.rows[row].followed()
        return [] if constraint is None else constraint.forced()

    def draft(
        self, logits: Float[Tensor, "row node scored"], prefixes: Prefixes, tokens: Int[Tensor, "scored"] | None = None
    ) -> LogProbs:
        """Log-probabilities of a draft model, warped like the target's; at temperature 0 they are unwarped, as a ranking.

        ``tokens`` are those of the logits, where a draft model can propose some only.

        They are NaN where no token is possible, so nothing is drafted there. NaN scores are an error of the round's checks,
        which :meth:`target` looks for.
        """
        if len(self._groups) == 1:
            return self._groups[0][1].draft(logits, prefixes, tokens, self.checks)
        paths = cache(prefixes)
        parts = [(rows, warper.draft(logits[rows], _of(rows, paths), tokens, self.checks)) for rows, warper in self._groups]
        return LogProbs.of_rows(parts, scores=False)

    def target(
        self,
        logits: Float[Tensor, "row node vocab"],
        prefixes: Prefixes,
        *,
        certain: bool = True,
        scores: bool = False,
        peaks: Peaks | None = None,
    ) -> LogProbs:
        """Log-probabilities of the target at every node.

        At temperature 0 they are point masses on the best token or, if not ``certain``, unwarped as a ranking. Nodes whose
        scores are NaN, and nodes without any possible token, are dead ends.

        Args:
            logits: of the target's forward.
            prefixes: the paths of the nodes.
            certain: see above.
            scores: where rows have unlike settings, log-probabilities up to a constant of each node are enough.
            peaks: of the logits, where they are known.
        """
        checks = self.checks or RoundChecks()
        if len(self._groups) == 1:
            return self._groups[0][1].target(logits, prefixes, checks, certain=certain, peaks=peaks)
        paths = cache(prefixes)
        parts = [
            (rows, warper.target(logits[rows], _of(rows, paths), checks, certain=certain)) for rows, warper in self._groups
        ]
        return LogProbs.of_rows(parts, scores=scores)


def _alike(samplings: Sequence[Sampling]) -> list[tuple[Sampling, list[int]]]:
    """Each of the unlike settings, and the rows that have it."""
    found: list[tuple[Sampling, list[int]]] = []
    for row, sampling in enumerate(samplings):
        for one, rows in found:
            if one is sampling or one == sampling:
                rows.append(row)
                break
        else:
            found.append((sampling, [row]))
    return found


def _of(rows: Sequence[int], paths: Callable[[], Paths]) -> Prefixes:
    return lambda: [paths()[row] for row in rows]
