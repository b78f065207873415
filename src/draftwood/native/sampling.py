"""Steps of sampling in the native library, where it is installed and the numbers are float32 on the host."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_double
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native.library import Cuts, address, array_address, library, why_missing

Numbers: TypeAlias = Float[np.ndarray, "*batch count"]
_EVERYTHING: Final = Cuts(0, 1.0, 0.0)


@cache
def _library() -> Any:
    return None if why_missing() is not None else library()


def runs(scores: Tensor) -> bool:
    """Whether :func:`best` takes these scores."""
    return scores.is_cpu and scores.dtype == torch.float32 and _library() is not None


def best(
    scores: Float[Tensor, "row node vocab"],
    cuts: Sequence[Any],
    keys: Int[np.ndarray, "*batch"] | None,
    bases: Int[Tensor, "tokens"],
    columns: Int[Tensor, "vocab"] | None,
    count: int,
    weights: Sequence[float] = (),
) -> tuple[Numbers, Int[np.ndarray, "*batch count"], Float[np.ndarray, "*batch"], Numbers | None]:
    """The best possible tokens under noise: their log-probabilities with noise, tokens, the largest without noise, and the
    logarithms of the probabilities that the target chooses them.

    Where fewer tokens are possible there are -inf and -1.

    Args:
        scores: log-probabilities up to a constant.
        cuts: per row, a :class:`draftwood.sampling.truncation.Truncation`; None for none.
        keys, bases: those of the noise, as for :func:`draftwood.sampling.counters.exponential`; a key of 0, or no keys, for
            none.
        columns: the tokens of the scores; None for all in order.
        count: number of tokens.
        weights: of a :class:`draftwood.draft.adaptive.expand.AcceptanceModel`; without them the last are not computed.

    Raises:
        ValueError: tensors have other sizes or types.
        RuntimeError: tokens have no noise, or memory does not suffice.
    """
    scores, (rows, nodes, vocab) = scores.contiguous(), scores.shape
    shape = rows, nodes
    values, tokens = np.empty((*shape, count), np.float32), np.empty((*shape, count), np.int64)
    likeliest, chances = np.empty(shape, np.float32), np.empty((*shape, count)) if weights else None
    done = _library().best(
        address(scores, torch.float32, *shape, vocab), rows, nodes, vocab, cuts_of(tuple(cuts), vocab),
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
    return values, tokens, likeliest, chances


def follow(
    scores: Float[Tensor, "row node vocab"],
    cuts: Sequence[Any],
    keys: Int[np.ndarray, "row depth"] | None,
    bases: Int[Tensor, "tokens"],
    tree: Any,
) -> tuple[list[list[int]], list[int]]:
    """Per row, the longest path on which every token is the best one at its parent, as for :func:`best`, and the best token
    at its end.

    Args:
        scores, cuts, bases: as for :func:`best`.
        keys: of the noise of each depth; None for none.
        tree: a :class:`draftwood.core.tree.DraftTree`.

    Raises:
        ValueError, RuntimeError: as :func:`best`.
    """
    scores, (rows, nodes, vocab) = scores.contiguous(), scores.shape
    paths, last = np.empty((rows, nodes), np.int64), np.empty(rows, np.int64)
    depths = 0 if keys is None else keys.shape[1]
    done = _library().follow(
        address(scores, torch.float32, rows, nodes, vocab), rows, nodes, vocab, cuts_of(tuple(cuts), vocab),
        None if keys is None else array_address(np.ascontiguousarray(keys), np.int64, rows, depths), depths,
        address(bases, torch.long, len(bases)), len(bases), array_address(tree.tokens, np.int64, rows, nodes),
        array_address(tree.parents, np.int64, rows, nodes), array_address(tree.valid, np.bool_, rows, nodes),
        array_address(paths, np.int64, rows, nodes), array_address(last, np.int64, rows),
    )  # fmt: skip
    if done < 0:
        raise RuntimeError(_library().error().decode())
    return [[node for node in path if node] for path in paths.tolist()], last.tolist()


@lru_cache
def cuts_of(cuts: tuple[Any, ...], vocab: int) -> Array[Cuts]:
    """The cut of each row, a :class:`draftwood.sampling.truncation.Truncation` or none, for the library."""
    found = (_EVERYTHING if cut is None else Cuts(min(cut.top_k, vocab), cut.top_p, cut.min_p) for cut in cuts)
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
