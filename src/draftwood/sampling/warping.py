"""From scores to the sampled distribution: penalties, processors, bias, grammar, temperature, top-k, top-p, min-p.

Every step is applied at every tree node on the node's own prefix (prompt, committed text, root-to-node path). The order is
that of ``transformers.generate``: penalties, processors and bias, then temperature, top-k, top-p, min-p, warpers. The mask
of a grammar comes after the bias, which therefore cannot make a forbidden token possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.errors import ConfigError, NumericsError
from draftwood.core.log_probs import DeadEnds
from draftwood.sampling.processing import processed
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling

Paths: TypeAlias = list[list[list[int] | None]]
"""Tokens after the root up to each node, ``[row][node]``; None for padding."""
Prefixes: TypeAlias = Callable[[], Paths]
"""Called only if the distribution depends on the text so far."""


def check_bias(sampling: Sampling, vocab: int) -> None:
    """Raise a ConfigError if ``logit_bias`` names a token that the target does not know."""
    if bad := [token for token in sampling.logit_bias or {} if not 0 <= token < vocab]:
        raise ConfigError(f"logit_bias names token {bad[0]}: give tokens from 0 to {vocab - 1}")


@final
class Warper:
    """One :class:`Sampling` bound to the rows that have it; arguments as for :class:`draftwood.sampling.sampler.Sampler`.

    Attributes:
        cut: what of the warped scores stays possible; None for everything.
        only_scales: nothing but the temperature changes the scores before that.
    """

    def __init__(self, sampling: Sampling, rows: Sequence[Row], vocab: int) -> None:
        self.sampling = sampling
        self.rows = rows
        self.vocab = vocab
        # Where truncation comes last: with warpers, it happens before them.
        self.cut = sampling.cuts if sampling.truncates and not sampling.greedy and not sampling.warps else None
        self.only_scales = sampling.only_scales
        self._biases: dict[tuple[torch.device, torch.dtype, int], Tensor] = {}

    def warp(
        self, logits: Float[Tensor, "row node scored"], prefixes: Prefixes, *, drafts: bool
    ) -> tuple[Float[Tensor, "row node scored"], DeadEnds]:
        """The scores before :attr:`cut`, and the nodes without a distribution."""
        s, dead = self.sampling, DeadEnds()
        scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if self.only_scales:
            return (scores if s.temperature in (0, 1) else scores / s.temperature), dead
        paths: Paths = []
        if s.looks_back:
            paths = self._reachable(prefixes())
            scores = self._penalise(scores, paths)
            if s.processors:
                scores, dead = self._process(s.processors, scores, paths)
        if s.logit_bias:
            scores = scores + self._bias(scores)
        if s.grammar is not None:
            scores, more = self._constrain(scores, paths, drafts=drafts)
            dead |= more
        if s.temperature not in (0, 1):
            scores = scores / s.temperature
        if s.warps:
            if s.truncates:
                scores = s.cuts.dense(scores)
            scores, more = self._process(s.warpers or (), scores, paths)
            dead |= more
        return scores, dead

    def _constrain(self, scores: Tensor, paths: Paths, *, drafts: bool) -> tuple[Tensor, DeadEnds]:
        """The scores of the tokens that the grammar permits, at every node; -inf for others.

        Where none is left, a draft proposes nothing. The target's scores stay as they are there, and a text that gets there
        has the error.
        """
        dead, masks = DeadEnds(), np.ones(scores.shape, np.bool_)
        for row, nodes in enumerate(paths):
            try:
                constraint = self.rows[row].followed()
            except NumericsError as error:  # the text itself
                dead |= {(row, node): error for node in range(len(nodes))}
                continue
            for node, path in enumerate(nodes):
                if constraint is not None and path is not None and (mask := constraint.mask(path)) is not None:
                    masks[row, node] = mask
        out = scores.masked_fill(~torch.from_numpy(masks).to(scores.device), -torch.inf)
        if drafts:
            return out, dead
        impossible = out.amax(dim=-1) == -torch.inf
        for row, node in impossible.nonzero().tolist():
            constraint, path = self.rows[row].constraint, paths[row][node]
            if constraint is not None and path is not None:
                dead.setdefault((row, node), constraint.dead_end(path))
        return torch.where(impossible.unsqueeze(-1), scores, out), dead

    def _reachable(self, paths: Paths) -> Paths:
        """Replace paths that contain the end of the text by None: no text continues there."""
        return [
            [None if path is None or not row.stops.isdisjoint(path) else path for path in nodes]
            for nodes, row in zip(paths, self.rows, strict=True)
        ]

    def _bias(self, scores: Tensor) -> Tensor:
        key = scores.device, scores.dtype, scores.shape[-1]
        if key not in self._biases:
            check_bias(self.sampling, self.vocab)
            given = self.sampling.logit_bias or {}
            bias = scores.new_zeros(scores.shape[-1])
            bias[list(given)] = scores.new_tensor(list(given.values()))
            self._biases[key] = bias
        return self._biases[key]

    def _penalise(self, scores: Tensor, prefixes: Paths) -> Tensor:
        s = self.sampling
        if s.repetition_penalty != 1:
            seen = self._counts(scores, prefixes, generated_only=False) > 0
            penalised = torch.where(scores < 0, scores * s.repetition_penalty, scores / s.repetition_penalty)
            scores = torch.where(seen, penalised, scores)
        if s.presence_penalty or s.frequency_penalty:
            counts = self._counts(scores, prefixes, generated_only=True)
            scores = scores - s.frequency_penalty * counts - s.presence_penalty * (counts > 0).to(scores.dtype)
        return scores

    def _counts(self, scores: Tensor, prefixes: Paths, *, generated_only: bool) -> Float[Tensor, "row node vocab"]:
        counts = torch.zeros_like(scores)
        for row, own in enumerate(self.rows):
            start = own.prompt_length if generated_only else 0
            history = torch.tensor(own.tokens[start:], dtype=torch.long, device=scores.device)
            counts[row] += torch.bincount(history, minlength=scores.shape[-1])[: scores.shape[-1]]
            for node, path in enumerate(prefixes[row]):
                for token in path or ():
                    counts[row, node, token] += 1
        return counts

    def _process(self, processors: Sequence[Any], scores: Tensor, prefixes: Paths) -> tuple[Tensor, DeadEnds]:
        bias, out, dead_ends = self.sampling.logit_bias or {}, [], DeadEnds()
        for row, (text, paths, part) in enumerate(zip(self.rows, prefixes, scores, strict=True)):
            found, dead = processed(text.bound(processors), text.padded, paths, part, bias)
            dead_ends |= {(row, node): error for node, error in dead.items()}
            out.append(found)
        return torch.stack(out), dead_ends
