"""Verification on the union of supports: where top-k, top-p or min-p make most tokens impossible, these are left out.

A token that is impossible for target and draft at every node of the round changes no distribution. Without such tokens the
others keep their order, so draws from cumulative distributions give the same tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.log_probs import Distributions, Pending, best_alone
from draftwood.core.rng import RoundRng, SubsetRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.sampling.best import follow_best
from draftwood.verify import Verifier
from draftwood.verify.coupled import Coupled, follow_table


def verify(verifier: Verifier, tree: DraftTree, target: Pending, rng: RoundRng) -> Verdict:
    """``verifier.verify``, on fewer tokens where that is possible.

    Where the target's distributions list their tokens, the verifier sees only tokens that are drafted, or possible for
    target or draft (one host sync). A verifier that reads the best token only is not called where only one is possible.
    """
    reads_argmax = verifier.reads == "argmax"
    certain = reads_argmax and target.certain
    if certain and target.best is not None:
        return follow_table(tree, target.best)
    matches = certain or type(verifier) is Coupled
    if matches and (found := follow_best(tree, target, None if certain else rng)) is not None:
        return found
    if certain:
        return follow_table(tree, best_alone(target.scores)[1].squeeze(-1))
    smaller, target_logp, tokens = reduced(tree, target, scores=reads_argmax)
    if tokens is None:
        return verifier.verify(smaller, target_logp, rng)
    verdict = verifier.verify(smaller, target_logp, SubsetRng(rng, tokens, target.vocab))
    return replace(verdict, next_tokens=tokens[list(verdict.next_tokens)].tolist())


def reduced(
    tree: DraftTree, target: Pending, *, scores: bool = False
) -> tuple[DraftTree, Float[Tensor, "row node n"], Int[Tensor, "n"] | None]:
    """The tree and the target's log-probabilities on the union of supports, and the tokens of the union in rising order.

    Where the target's distributions cover the whole vocabulary, the tree comes back as it is, and None for the tokens.

    Args:
        scores: in that case, log-probabilities up to a constant of each node are enough.
    """
    if scores and not any(target.cuts):
        return tree, target.scores, None
    settled, draft = target.settled, tree.draft_log_probs
    if settled.tokens is None:
        return tree, settled.logp, None
    drafted = torch.as_tensor(tree.tokens, device=settled.logp.device)
    tokens: Int[Tensor, "n"] = torch.unique(torch.cat([drafted.flatten(), *map(_support, filter(None, (settled, draft)))]))
    smaller = replace(
        tree,
        tokens=torch.searchsorted(tokens, drafted).cpu().numpy(),
        ranking=None if draft is None else partial(Distributions, logp=draft.on(tokens), vocab=len(tokens)),
    )
    return smaller, settled.on(tokens), tokens


def _support(found: Distributions) -> Int[Tensor, "n"]:
    """The tokens that are possible at some node, with repetitions."""
    if found.tokens is None:
        return (found.logp > -torch.inf).flatten(0, 1).any(dim=0).nonzero().squeeze(1)
    return found.tokens[found.logp > -torch.inf]
