"""The best tokens of nodes under the shared noise of their positions: one call of the native library, where it is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.log_probs import LogProbs
from draftwood.core.rng import RoundRng, drawing_space
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
    """

    tokens: Int[Tensor, "row node count"]
    scores: Float[Tensor, "row node count"]
    likeliest: Float[Tensor, "row node"]


def best_tokens(log_probs: LogProbs, rng: RoundRng, depth: int, count: int, *, depths: int = 1) -> Best:
    """The tokens with the highest sums of log-probability and noise below nodes of this depth.

    Args:
        log_probs: at the nodes.
        rng: the noise.
        depth: of all nodes, or of the first where each node is one level deeper than the one before.
        count: number of tokens of a node, at most.
        depths: the number of nodes in that case.
    """
    uncut, count = log_probs.uncut, min(count, log_probs.vocab)
    if uncut is not None and isinstance(rng, CounterRoundRng) and native.runs(uncut[0]):
        scores, cut, columns = uncut
        keys, bases = rng.shared_keys(depth, depths), token_bases(log_probs.vocab, scores.device)
        keys = None if keys is None else keys.expand(*scores.shape[:2])
        values, tokens, log_probs.likeliest = native.best(scores, cut, keys, bases, columns, min(count, scores.shape[-1]))
        return Best(tokens, values, log_probs.likeliest)
    logp, rng, columns = drawing_space(log_probs, rng)
    noise = rng.shared(depth, depths, logp.shape[-1])
    perturbed = logp if noise is None else logp + noise
    values, tokens = perturbed.nan_to_num(nan=-torch.inf, neginf=-torch.inf).topk(min(count, logp.shape[-1]), dim=-1)
    tokens = torch.where(values > -torch.inf, tokens if columns is None else columns[tokens], -1)
    return Best(tokens, values, logp.amax(dim=-1))


def chooser(log_probs: LogProbs, rng: RoundRng | None, depths: int) -> Choose:
    """The choice of the token with the highest sum of log-probability and noise at a node on the host.

    Args:
        log_probs: at the nodes.
        rng: the noise; None for none.
        depths: the depths of the nodes are below it.
    """
    keys = rng.shared_keys(0, depths) if isinstance(rng, CounterRoundRng) else None
    bases = token_bases(log_probs.vocab, torch.device("cpu"))
    noise_of_all = cache(lambda depth: None if rng is None else rng.shared(depth, 1, log_probs.vocab))

    def choose(row: int, node: int, depth: int) -> int:
        part, own = log_probs.of_row(row)
        if part.certain is not None:
            return int(part.certain[own, node])
        uncut = part.uncut if rng is None or keys is not None else None
        if uncut is not None and native.runs(uncut[0]):
            scores, cut, columns = uncut
            key = None if keys is None else keys[row, depth]
            return int(native.best(scores[own, node], cut, key, bases, columns, 1, normalise=False)[1])
        values, tokens = part.line(own, node)
        line = values.detach().numpy()
        noise = noise_of_all(depth) if rng is None or tokens is None else rng.shared(depth, 1, log_probs.vocab, tokens)
        if noise is not None:  # added to large scores, it would lose its digits
            line = line - line.max() + noise[row, 0].detach().numpy()
        best = int(line.argmax())
        return best if tokens is None else int(tokens[best])

    return choose
