"""The best tokens of nodes under the shared noise of their positions: one call of the native library, where it is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from draftwood.core.log_probs import Pending, best_alone
from draftwood.core.rng import RoundRng, drawing_space
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.native import sampling as native
from draftwood.native.sampling import Best
from draftwood.sampling.counter_rng import CounterRoundRng
from draftwood.sampling.counters import token_bases


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
        best = native.best(pending, keys, bases, min(count, scores.shape[-1]), weights)
        if np.isnan(best.likeliest).any():
            pending.look()
        return best
    logp, rng, tokens_of = drawing_space(pending, rng)
    noise = rng.shared(depth, 1, logp.shape[-1])
    perturbed = logp if noise is None else logp + noise
    found, at = perturbed.nan_to_num(nan=-torch.inf, neginf=-torch.inf).topk(min(count, logp.shape[-1]), dim=-1)
    chosen = tokens_of(torch.where(found > -torch.inf, at, -1))
    return Best(chosen.cpu().numpy(), found.cpu().numpy(), logp.amax(dim=-1).cpu().numpy())


def follow_best(tree: DraftTree, target: Pending, rng: RoundRng | None) -> Verdict | None:
    """The path of the best tokens, of which the nodes alone are read; None where the library does not take the scores or the
    noise. Without ``rng`` there is no noise."""
    if not native.runs(target.scores) or not (rng is None or isinstance(rng, CounterRoundRng)):
        return None
    keys = None if rng is None else rng.shared_keys(0, tree.max_depth + 1)
    if keys is not None and best_alone in target.cuts:
        keys = np.where([[cut is best_alone] for cut in target.cuts], 0, keys)
    return native.follow(target, keys, token_bases(target.vocab, target.scores.device), tree)
