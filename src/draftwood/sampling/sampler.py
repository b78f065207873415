"""The sampled distributions of a batch, whose rows have settings of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.core.log_probs import Cut, DeadEnds, Pending, RoundChecks, best_alone
from draftwood.core.scores import Peaks, dense
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from draftwood.sampling.warping import Paths, Prefixes, Warper


@final
class Sampler:
    """The rows of a batch and their settings. Rows with equal settings are computed together.

    Args:
        rows: the texts.
        vocab: the size of the target's vocabulary; draft logits are padded or cut to it.

    Attributes:
        greedy: every row has temperature 0.
        looks_back: the distribution of some row depends on the prefix of a node, not only on its scores.
        only_scales: nothing but their temperatures changes the scores of the rows before their cuts.
        cuts: of the rows; None for everything.
        checks: those of this round.

    Raises:
        ConfigError: a grammar without a constraint.
    """

    def __init__(self, rows: Sequence[Row], vocab: int) -> None:
        self.rows = list(rows)
        self.vocab = vocab
        self.greedy = all(row.sampling.greedy for row in rows)
        self.looks_back = any(row.sampling.looks_back for row in rows)
        self.checks = RoundChecks()
        for row in rows:
            if (grammar := row.sampling.grammar) is not None and row.constraint is None:
                raise ConfigError(f"{grammar.name} has no constraint here: only a decoder's batch applies a grammar")
        self._groups = [
            (numbers, Warper(sampling, [self.rows[i] for i in numbers], vocab))
            for sampling, numbers in _alike([row.sampling for row in rows])
        ]
        self.only_scales = all(warper.sampling.only_scales for _, warper in self._groups)
        cuts = {row: warper.cut for numbers, warper in self._groups for row in numbers}
        self.cuts: list[Cut | None] = [cuts[row] for row in range(len(self.rows))]
        self._certain = [best_alone if row.sampling.greedy else cut for row, cut in zip(rows, self.cuts, strict=True)]

    def begin_round(self) -> None:
        """Begin a round, with checks that the drafter and the target share."""
        self.checks = RoundChecks()

    def permitted(self, row: int, tokens: Sequence[int]) -> int:
        """How many of the guessed next tokens of a row its grammar permits, and no bias of minus infinity forbids.

        Processors are called in the tree alone, where a token that they forbid is rejected as any other.
        """
        own = self.rows[row]
        if (constraint := own.followed()) is not None:
            tokens = tokens[: constraint.permitted(tokens)]
        bias = own.sampling.logit_bias or {}
        return next((i for i, token in enumerate(tokens) if bias.get(token) == -math.inf), len(tokens))

    def forced(self, row: int) -> list[int]:
        """Tokens of the only text that the grammar of a row admits next, as a guess; none without a grammar."""
        constraint = self.rows[row].followed()
        return [] if constraint is None else constraint.forced()

    def draft(
        self, logits: Float[Tensor, "row node scored"], prefixes: Prefixes, tokens: Int[Tensor, "scored"] | None = None
    ) -> Pending:
        """Scores of a draft model, warped like the target's; at temperature 0 they are unwarped, as a ranking.

        ``tokens`` are those of the logits, where a draft model can propose some only.

        Nothing is drafted where no token is possible. NaN scores are an error of the round's checks, which :meth:`target`
        looks for.
        """
        if tokens is None or not self.only_scales:
            logits, tokens = self._whole(logits, tokens), None
        scores, _ = self._warped(logits, prefixes, drafts=True)
        return Pending(scores=scores, cuts=self.cuts, tokens=tokens, vocab=self.vocab, note=self.checks.note_draft)

    def _whole(
        self, logits: Float[Tensor, "row node scored"], tokens: Int[Tensor, "scored"] | None
    ) -> Float[Tensor, "row node vocab"]:
        """The logits over the target's vocabulary; -inf for tokens that have none."""
        logits = logits if tokens is None else dense(logits, tokens, self.vocab)
        if (missing := self.vocab - logits.shape[-1]) > 0:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[..., : self.vocab]

    def target(
        self,
        logits: Float[Tensor, "row node vocab"],
        prefixes: Prefixes,
        *,
        certain: bool = True,
        peaks: Peaks | None = None,
    ) -> Pending:
        """The target's distributions at every node.

        At temperature 0 they are point masses on the best token or, if not ``certain``, unwarped as a ranking. Nodes whose
        scores are NaN, and nodes without any possible token, are dead ends.

        Args:
            logits: of the target's forward.
            prefixes: the paths of the nodes.
            certain: see above.
            peaks: of the logits, where they are known.
        """
        scores, dead_ends = self._warped(logits, prefixes, drafts=False)
        highest, best, (_, first) = None, None, self._groups[0]
        if peaks is not None and len(self._groups) == 1 and first.sampling.only_scales:
            best, highest = peaks.tokens, peaks.scores if scores is logits else peaks.scores / first.sampling.temperature
        if unusable := self.checks.check(scores, highest):
            dead_ends = unusable | dead_ends
            scores = scores.clone()
            for row, node in unusable:
                scores[row, node] = 0.0
        cuts = self._certain if certain else self.cuts
        return Pending(scores=scores, cuts=cuts, vocab=self.vocab, dead_ends=dead_ends, best=best)

    def _warped(self, logits: Tensor, prefixes: Prefixes, *, drafts: bool) -> tuple[Tensor, DeadEnds]:
        """The scores of all rows before their cuts, and the nodes without a distribution."""
        if len(self._groups) == 1:
            return self._groups[0][1].warp(logits, prefixes, drafts=drafts)
        paths, dead_ends = cache(prefixes), DeadEnds()
        parts = []
        for rows, warper in self._groups:
            scores, dead = warper.warp(logits[rows], _of(rows, paths), drafts=drafts)
            parts.append(scores)
            dead_ends |= {(rows[row], node): error for (row, node), error in dead.items()}
        out = logits.new_empty(logits.shape, dtype=reduce(torch.promote_types, [part.dtype for part in parts]))
        for (rows, _), part in zip(self._groups, parts, strict=True):
            out[rows] = part
        return out, dead_ends


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
