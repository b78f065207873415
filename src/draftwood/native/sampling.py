"""Steps of sampling in the native library, where it is installed and the numbers are float32 on the host."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_double
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.log_probs import Pending, best_alone
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.native.library import Cuts, address, array_address, library, why_missing

_EVERYTHING: Final = Cuts(0, 1.0, 0.0)


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


@cache
def _library() -> Any:
    return None if why_missing() is not None else library()


def runs(scores: Tensor) -> bool:
    """Whether :func:`best` takes these scores."""
    return scores.is_cpu and scores.dtype == torch.float32 and _library() is not None


def best(
    pending: Pending,
    keys: Int[np.ndarray, "*batch"] | None,
    bases: Int[Tensor, "tokens"],
    count: int,
    weights: Sequence[float] = (),
) -> Best:
    """The best possible tokens under noise.

    Args:
        pending: the scores at the nodes.
        keys, bases: those of the noise, as for :func:`draftwood.sampling.counters.exponential`; a key of 0, or no keys, for
            none.
        count: number of tokens of a node.
        weights: of a :class:`draftwood.draft.adaptive.expand.AcceptanceModel`; without them the last are not computed.

    Raises:
        ValueError: tensors have other sizes or types.
        RuntimeError: tokens have no noise, or memory does not suffice.
    """
    scores, (rows, nodes, vocab) = pending.scores.contiguous(), pending.scores.shape
    shape, columns = (rows, nodes), pending.tokens
    values, tokens = np.empty((*shape, count), np.float32), np.empty((*shape, count), np.int64)
    likeliest, chances = np.empty(shape, np.float32), np.empty((*shape, count)) if weights else None
    done = _library().best(
        address(scores, torch.float32, *shape, vocab), rows, nodes, vocab, cuts_of(tuple(pending.cuts), vocab),
        None if keys is None else array_address(np.ascontiguousarray(keys), np.int64, *shape),
        address(bases, torch.long, len(bases)), len(bases),
        None if columns is None else address(columns, torch.long, vocab), count,
        array_address(values, np.float32, *shape, count), array_address(tokens, np.int64, *shape, count),
        array_address(likeliest, np.float32, *shape),
        (c_double * len(weights))(*weights) if weights else None,
        None if chances is None else array_address(chances, np.float64, *shape, count),
    )  # fmt: skip
    if done < 0:
        raise RuntimeError(_library().error().decode())
    return Best(tokens, values, likeliest, chances)


def follow(
    target: Pending, keys: Int[np.ndarray, "row depth"] | None, bases: Int[Tensor, "tokens"], tree: DraftTree
) -> Verdict:
    """The longest path on which every token is the best one at its parent, and the best token at its end; arguments and
    errors as for :func:`best`, with the keys of each depth."""
    scores, (rows, nodes, vocab) = target.scores.contiguous(), target.scores.shape
    paths, last = np.empty((rows, nodes), np.int64), np.empty(rows, np.int64)
    depths = 0 if keys is None else keys.shape[1]
    done = _library().follow(
        address(scores, torch.float32, rows, nodes, vocab), rows, nodes, vocab, cuts_of(tuple(target.cuts), vocab),
        None if keys is None else array_address(np.ascontiguousarray(keys), np.int64, rows, depths), depths,
        address(bases, torch.long, len(bases)), len(bases), array_address(tree.tokens, np.int64, rows, nodes),
        array_address(tree.parents, np.int64, rows, nodes), array_address(tree.valid, np.bool_, rows, nodes),
        array_address(paths, np.int64, rows, nodes), array_address(last, np.int64, rows),
    )  # fmt: skip
    if done < 0:
        raise RuntimeError(_library().error().decode())
    return Verdict(paths=[[node for node in path if node] for path in paths.tolist()], next_tokens=last.tolist())


@lru_cache
def cuts_of(cuts: tuple[Any, ...], vocab: int) -> Array[Cuts]:
    """The cut of each row for the library: a :class:`draftwood.sampling.truncation.Truncation`; or none, which leaves the
    best token as it is."""
    found = (_EVERYTHING if cut in (None, best_alone) else Cuts(min(cut.top_k, vocab), cut.top_p, cut.min_p) for cut in cuts)
    return (Cuts * len(cuts))(*found)


def exponential(keys: Int[Tensor, "*batch 1"], bases: Int[Tensor, "n"]) -> Float[Tensor, "*batch n"] | None:
    """As :func:`draftwood.sampling.counters.exponential` in float32; None where this is for PyTorch."""
    if not keys.is_cpu or _library() is None:
        return None
    keys, bases = keys.contiguous(), bases.contiguous()
    out = torch.empty(*keys.shape[:-1], len(bases), dtype=torch.float32)
    given = address(keys, torch.long, *out.shape[:-1], 1), address(bases, torch.long, len(bases))
    _library().exponentials(given[0], keys.numel(), given[1], len(bases), out.data_ptr())
    return out
