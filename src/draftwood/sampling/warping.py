"""From scores to the sampled distribution: penalties, processors, bias, grammar, temperature, top-k, top-p, min-p.

Every step is applied at every tree node on the node's own prefix (prompt, committed text, root-to-node path). The order is
that of ``transformers.generate``: penalties, processors and bias, then temperature, top-k, top-p, min-p, warpers. The mask
of a grammar comes after the bias, which therefore cannot make a forbidden token possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import ConfigError, NumericsError
from draftwood.core.log_probs import DeadEnds
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
    """

    def __init__(self, sampling: Sampling, rows: Sequence[Row], vocab: int) -> None:
        self.sampling = sampling
        self.rows = rows
        self.vocab = vocab
        # Where truncation comes last: with warpers, it happens before them.
        self.cut = sampling.cuts if sampling.truncates and not sampling.greedy and not sampling.warps else None
        self._biases: dict[tuple[torch.device, torch.dtype, int], Tensor] = {}

    def warp(
        self, logits: Float[Tensor, "row node scored"], prefixes: Prefixes, *, drafts: bool
    ) -> tuple[Float[Tensor, "row node scored"], DeadEnds]:
        """The scores before :attr:`cut`, and the nodes without a distribution."""
        s, dead = self.sampling, DeadEnds()
        scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if s.only_scales:
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


Nodes: TypeAlias = list[tuple[int, list[int]]]
"""Nodes, each with its path: the tokens after the root up to it."""
_NOTHING_LEFT: Final = "the logits processors leave no token possible after this text: check them"


def apply(
    processors: Sequence[Any], ids: Int[Tensor, "n length"], scores: Float[Tensor, "n vocab"]
) -> Float[Tensor, "n vocab"]:
    """The scores after all processors of one row, in order."""
    for processor in processors:
        scores = processor(ids, scores)
    return scores


def processed(
    processors: Sequence[Any],
    text: Sequence[int],
    paths: Sequence[list[int] | None],
    scores: Float[Tensor, "node vocab"],
    bias: Mapping[int, float],
) -> tuple[Float[Tensor, "node vocab"], dict[int, Exception]]:
    """Apply one row's processors to the scores at its nodes, level by level.

    Processors are not called below a token that they, the model or the bias forbid, since no text gets there. A processor
    may raise, or below the root leave no token possible. That is an error only if the text gets there, which it may never
    do. In both cases the scores stay as they are.

    Returns:
        The processed scores, and the errors of nodes.
    """
    dead: dict[int, Exception] = {}
    out, above = scores.clone(), dict[tuple[int, ...], int]()  # above: the nodes one level up, by path
    by_length: dict[int, Nodes] = {}
    for node, path in enumerate(paths):
        if path is not None:
            by_length.setdefault(len(path), []).append((node, path))
    for i, length in enumerate(sorted(by_length)):
        level = by_length[length]
        group = _reached(out, level, above, bias) if i else level
        above = {tuple(path): node for node, path in group}
        if group:
            nodes = [node for node, _ in group]
            new_scores, errors = _apply_to_level(processors, text, group, scores[nodes])
            out[nodes] = new_scores.to(out.dtype)
            dead |= errors
            above = {path: node for path, node in above.items() if node not in errors}
    return out, dead


def _apply_to_level(
    processors: Sequence[Any], text: Sequence[int], group: Nodes, scores: Float[Tensor, "n vocab"]
) -> tuple[Float[Tensor, "n vocab"], dict[int, Exception]]:
    """The processed scores at nodes of one level, and the errors of nodes that have none."""
    ids: Int[Tensor, "n length"] = torch.tensor([[*text, *path] for _, path in group], device=scores.device)
    errors: dict[int, Exception] = {}
    try:
        new_scores = apply(processors, ids, scores)
    except Exception:
        parts = []
        for i, (node, _) in enumerate(group):
            try:
                parts.append(apply(processors, ids[i : i + 1], scores[i : i + 1]))
            except Exception as error:
                errors[node] = error
                parts.append(scores[i : i + 1])
        new_scores = torch.cat(parts)
    if not group[0][1]:  # at the root, where the text is
        return new_scores, errors
    impossible = (new_scores == -torch.inf).all(dim=-1)
    for i in impossible.nonzero().flatten().tolist():
        errors[group[i][0]] = NumericsError(_NOTHING_LEFT)
    return torch.where(impossible.unsqueeze(1), scores, new_scores), errors


def _reached(
    scores: Float[Tensor, "node vocab"], level: Nodes, above: Mapping[tuple[int, ...], int], bias: Mapping[int, float]
) -> Nodes:
    """The nodes of a level whose token is possible at the node above (one host sync)."""
    held = [(node, path) for node, path in level if tuple(path[:-1]) in above and bias.get(path[-1]) != -math.inf]
    parents, tokens = [above[tuple(path[:-1])] for _, path in held], [path[-1] for _, path in held]
    impossible = (scores[parents, tokens] == -torch.inf).tolist()
    return [one for one, never in zip(held, impossible, strict=True) if not never]
