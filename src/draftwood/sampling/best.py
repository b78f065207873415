"""The best tokens of nodes under the shared noise of their positions: one call of the native library, where it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int

from draftwood.core.log_probs import LogProbs
from draftwood.core.rng import RoundRng, drawing_space
from draftwood.core.tree import DraftTree
from draftwood.native import sampling as native
from draftwood.sampling.counter_rng import CounterRoundRng
from draftwood.sampling.counters import token_bases

Choose: TypeAlias = Callable[[int, int, int], int]
"""The target's choice of a token, given the row, the node and the node's depth."""


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


def best_tokens(
    log_probs: LogProbs, rng: RoundRng, depth: int, count: int, *, depths: int = 1, weights: Sequence[float] = ()
) -> Best:
    """The tokens with the highest sums of log-probability and noise below nodes of this depth (one host sync).

    Args:
        log_probs: at the nodes.
        rng: the noise.
        depth: of all nodes, or of the first where each node is one level deeper than the one before.
        count: number of tokens of a node, at most.
        depths: the number of nodes in that case.
        weights: as for :func:`draftwood.native.sampling.best`.
    """
    uncut, count = log_probs.uncut, min(count, log_probs.vocab)
    if uncut is not None and isinstance(rng, CounterRoundRng) and native.runs(uncut[0]):
        scores, cut, columns = uncut
        keys, bases = rng.shared_keys(depth, depths), token_bases(log_probs.vocab, scores.device)
        keys = None if keys is None else np.broadcast_to(keys, scores.shape[:2])
        values, tokens, log_probs.likeliest, chances = native.best(
            scores, cut, keys, bases, columns, min(count, scores.shape[-1]), weights
        )
        return Best(tokens, values, log_probs.likeliest, chances)
    logp, rng, space = drawing_space(log_probs, rng)
    noise = rng.shared(depth, depths, logp.shape[-1])
    perturbed = logp if noise is None else logp + noise
    found, at = perturbed.nan_to_num(nan=-torch.inf, neginf=-torch.inf).topk(min(count, logp.shape[-1]), dim=-1)
    chosen = torch.where(found > -torch.inf, at if space is None else space[at], -1)
    return Best(chosen.cpu().numpy(), found.cpu().numpy(), logp.amax(dim=-1).cpu().numpy())


def follow_best(
    tree: DraftTree, log_probs: LogProbs, rng: RoundRng | None, rows: Sequence[int]
) -> tuple[Sequence[list[int]], Sequence[int]] | None:
    """:func:`draftwood.native.sampling.follow`; None where the library does not take the distributions or the noise.

    ``rows`` are the numbers that the rows have in ``rng``.
    """
    uncut = log_probs.uncut if rng is None or isinstance(rng, CounterRoundRng) else None
    if uncut is None or uncut[2] is not None or not native.runs(uncut[0]):
        return None
    keys = rng.shared_keys(0, tree.max_depth + 1) if isinstance(rng, CounterRoundRng) else None
    keys = None if keys is None else keys[list(rows)]
    return native.follow(uncut[0], uncut[1], keys, token_bases(log_probs.vocab, uncut[0].device), tree)


def chooser(log_probs: LogProbs, rng: RoundRng | None, rows: Sequence[int]) -> Choose:
    """The choice of the token with the highest sum of log-probability and noise at a node on the host; None is no noise.

    ``rows`` are the numbers that the rows have in ``rng``.
    """
    noise_of_all = cache(lambda depth: None if rng is None else rng.shared(depth, 1, log_probs.vocab))

    def choose(row: int, node: int, depth: int) -> int:
        if log_probs.certain is not None:
            return int(log_probs.certain[row, node])
        values, tokens = log_probs.line(row, node)
        line = values.detach().numpy()
        noise = noise_of_all(depth) if rng is None or tokens is None else rng.shared(depth, 1, log_probs.vocab, tokens)
        if noise is not None:  # added to large scores, it would lose its digits
            line = line - line.max() + noise[rows[row], 0].detach().numpy()
        best = int(line.argmax())
        return best if tokens is None else int(tokens[best])

    return choose
