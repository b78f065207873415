"""The best tokens of nodes under the shared noise of their positions: one call of the native library, where it is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from draftwood.core.log_probs import Pending, best_alone
from draftwood.core.rng import RoundRng, drawing_space
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.native import sampling as native
from draftwood.sampling.counter_rng import CounterRoundRng
from draftwood.sampling.counters import token_bases


class Best(NamedTuple):
    """The best tokens of each node.

    Attributes:
        tokens: in falling order of their scores; -1 where no further token is possible.
        scores: log-probabilities with noise; -inf there.
        likeliest: the largest log-probability without noise; NaN at a node without a possible token.
        chances: logarithms of the probabilities that the target chooses them, from the library, and by its weights.
    """

    tokens: Int[np.ndarray, "row node count"]
    scores: Float[np.ndarray, "row node count"]
    likeliest: Float[np.ndarray, "row node"]
    chances: Float[np.ndarray, "row node count"] | None = None


def best_tokens(pending: Pending, rng: RoundRng, depth: int, count: int, *, weights: Sequence[float] = ()) -> Best:
    """The tokens with the highest sums of log-probability and noise below nodes of this depth (one host sync).

    Args:
        pending: the scores at the nodes.
        rng: the noise.
        depth: of all nodes.
        count: number of tokens of a node, at most.
        weights: as for :func:`draftwood.native.sampling.best`.
    """
    scores, count = pending.scores, min(count, pending.vocab)
    if isinstance(rng, CounterRoundRng) and native.runs(scores):
        keys, bases = rng.shared_keys(depth, 1), token_bases(pending.vocab, scores.device)
        keys = None if keys is None else keys.repeat(scores.shape[1], axis=1)
        count = min(count, scores.shape[-1])
        values, tokens, likeliest, chances = native.best(scores, pending.cuts, keys, bases, pending.tokens, count, weights)
        if np.isnan(likeliest).any():
            pending.look()
        return Best(tokens, values, likeliest, chances)
    logp, rng, space = drawing_space(pending, rng)
    noise = rng.shared(depth, 1, logp.shape[-1])
    perturbed = logp if noise is None else logp + noise
    found, at = perturbed.nan_to_num(nan=-torch.inf, neginf=-torch.inf).topk(min(count, logp.shape[-1]), dim=-1)
    chosen = torch.where(found > -torch.inf, at if space is None else space[at], -1)
    return Best(chosen.cpu().numpy(), found.cpu().numpy(), logp.amax(dim=-1).cpu().numpy())


def follow_best(tree: DraftTree, target: Pending, rng: RoundRng | None) -> Verdict | None:
    """The path of the best tokens, of which the nodes alone are read; None where the library does not take the scores or the
    noise. Without ``rng`` there is no noise."""
    if not native.runs(target.scores) or not (rng is None or isinstance(rng, CounterRoundRng)):
        return None
    keys = None if rng is None else rng.shared_keys(0, tree.max_depth + 1)
    if keys is not None and best_alone in target.cuts:
        keys = np.where([[cut is best_alone] for cut in target.cuts], 0, keys)
    cuts = [None if cut is best_alone else cut for cut in target.cuts]
    paths, last = native.follow(target.scores, cuts, keys, token_bases(target.vocab, target.scores.device), tree)
    return Verdict(paths=paths, next_tokens=last)
