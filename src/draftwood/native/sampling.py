"""Steps of sampling in the native library, where it is installed and the numbers are float32 on the host."""

from __future__ import annotations

from ctypes import byref
from functools import cache
from typing import Any, Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native.library import Cuts, address, library, why_missing

_EVERYTHING: Final = Cuts(0, 1.0, 0.0)


@cache
def _library() -> Any:
    return None if why_missing() is not None else library()


def runs(scores: Tensor) -> bool:
    """Whether :func:`best` takes these scores."""
    return scores.is_cpu and scores.dtype == torch.float32 and _library() is not None


def best(
    scores: Float[Tensor, "*batch vocab"],
    cut: Any,
    keys: Int[Tensor, "*batch"] | None,
    bases: Int[Tensor, "tokens"],
    columns: Int[Tensor, "vocab"] | None,
    count: int,
    *,
    normalise: bool = True,
) -> tuple[Float[Tensor, "*batch count"], Int[Tensor, "*batch count"], Float[Tensor, "*batch"]]:
    """The best possible tokens under noise: their log-probabilities with noise, tokens, and the largest without noise.

    Where fewer tokens are possible there are -inf and -1. Unless ``normalise``, the first are known up to a constant and the
    last is not computed.

    Args:
        scores: log-probabilities up to a constant.
        cut: a :class:`draftwood.sampling.truncation.Truncation`; None for none.
        keys, bases: those of the noise, as for :func:`draftwood.sampling.counters.exponential`; a key of 0, or no keys, for
            none.
        columns: the tokens of the scores; None for all in order.
        count: number of tokens.

    Raises:
        ValueError: tensors have other sizes or types.
        RuntimeError: tokens have no noise, or memory does not suffice.
    """
    scores = scores.contiguous()
    shape, vocab = scores.shape[:-1], scores.shape[-1]
    values, tokens, likeliest = torch.empty(*shape, count), torch.empty(*shape, count, dtype=torch.long), torch.empty(shape)
    cuts = _EVERYTHING if cut is None else Cuts(min(cut.top_k, vocab), cut.top_p, cut.min_p)
    columns = None if columns is None else columns.long().contiguous()
    keys = None if keys is None else keys.contiguous()
    done = _library().best(
        address(scores, torch.float32, *shape, vocab), likeliest.numel(), vocab, byref(cuts),
        None if keys is None else address(keys, torch.long, *shape), address(bases, torch.long, len(bases)), len(bases),
        None if columns is None else address(columns, torch.long, vocab), count,
        values.data_ptr(), tokens.data_ptr(), likeliest.data_ptr() if normalise else None,
    )  # fmt: skip
    if done < 0:
        raise RuntimeError(_library().error().decode())
    return values, tokens, likeliest


def exponential(keys: Int[Tensor, "*batch 1"], bases: Int[Tensor, "n"]) -> Float[Tensor, "*batch n"] | None:
    """As :func:`draftwood.sampling.counters.exponential` in float32; None where this is for PyTorch."""
    if not keys.is_cpu or _library() is None:
        return None
    keys, bases = keys.contiguous(), bases.contiguous()
    out = torch.empty(*keys.shape[:-1], len(bases))
    given = address(keys, torch.long, *out.shape[:-1], 1), address(bases, torch.long, len(bases))
    _library().exponentials(given[0], keys.numel(), given[1], len(bases), out.data_ptr())
    return out
