"""Errors that concern one row of a round: the round goes on for the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.log_probs import LogProbs
from draftwood.core.sampling import Sampler
from draftwood.core.settings import Sampling
from draftwood.core.tree import DraftTree
from draftwood.core.warping import Prefixes
from draftwood.engine.parts import Row
from draftwood.verify import Verifier


def sampler_of(
    rows: Sequence[Row], vocab: int, device: torch.device, samplings: Sequence[Sampling] | None = None
) -> Sampler:
    """The settings of some rows, or other settings for these rows."""
    return Sampler(
        [row.sampling for row in rows] if samplings is None else samplings,
        [row.output.tokens for row in rows],
        [row.output.prompt_length for row in rows],
        vocab,
        [row.output.stops for row in rows],
        [row.number for row in rows],
        device,
        [row.constraint for row in rows],
        [row.request.nodes for row in rows],
    )


def distributions(
    sampler: Sampler, logits: Float[Tensor, "row node vocab"], prefixes: Prefixes, verifier: Verifier
) -> LogProbs:
    """The target's distributions, as the verifier reads them; raises what :meth:`Sampler.target` raises."""
    matches = verifier.reads == "argmax"
    return sampler.target(logits, prefixes, certain=matches or not verifier.greedy_only, scores=matches)


def tolerant_distributions(
    rows: Sequence[Row], logits: Float[Tensor, "row node vocab"], tree: DraftTree, verifier: Verifier
) -> tuple[LogProbs, dict[int, Exception]]:
    """The target's distributions where some have errors, and the rows that have one even alone.

    Such rows get equal scores, which are not used. Without such a row the draft's distributions were at fault; nothing was
    drafted from these.
    """
    paths, device, vocab = tree.prefixes(), logits.device, logits.shape[-1]
    errors: dict[int, Exception] = {}
    for i, row in enumerate(rows):
        try:
            distributions(sampler_of([row], vocab, device), logits[i : i + 1], partial(list, paths[i : i + 1]), verifier)
        except Exception as error:
            errors[i] = error
    samplings = [row.sampling for row in rows]
    for i in errors:
        samplings[i] = Sampling(temperature=samplings[i].temperature)
    logits = logits.clone()
    logits[list(errors)] = 0.0
    return distributions(sampler_of(rows, vocab, device, samplings), logits, tree.prefixes, verifier), errors
