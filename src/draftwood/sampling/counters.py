"""Random bits from counters, by integer mixing without state that is the same on every device.

The host uses the finaliser of SplitMix64 (Steele et al. 2014), the device the finaliser's two multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native import sampling as native

_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_SHIFTS: Final = tuple(np.uint64(n) for n in (30, 27, 31))
_FACTORS: Final = (np.uint64(_MIX_1), np.uint64(_MIX_2))
STEP: Final = np.uint64(0x9E3779B97F4A7C15)
"""Counters are multiplied by this odd number before they are mixed."""
Counters: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


def mix(x: Counters) -> Counters:
    """64 mixed bits from each counter, after multiplication by :data:`STEP`."""
    x = (x ^ (x >> _SHIFTS[0])) * _FACTORS[0]
    x = (x ^ (x >> _SHIFTS[1])) * _FACTORS[1]
    mixed: Counters = x ^ (x >> _SHIFTS[2])
    return mixed


def uniform(keys: Counters, slots: Sequence[int]) -> list[float]:
    """A uniform number strictly inside (0, 1), of 52 bits, from each key and its slot."""
    counters: Counters = keys + (np.asarray(slots, dtype=np.uint64) + np.uint64(1)) * STEP
    found: list[float] = (((mix(counters) >> np.uint64(12)) + 0.5) * 2.0**-52).tolist()
    return found


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= (1 << 63) else x


@cache
def token_bases(vocab: int, device: torch.device) -> Int[Tensor, "vocab"]:
    """The token part of the counters; made once per vocabulary and device."""
    counters: Counters = np.arange(1, vocab + 1, dtype=np.uint64) * STEP
    return torch.from_numpy(mix(counters).view(np.int64)).to(device)


def exponential(keys: Int[Tensor, "*batch 1"], bases: Int[Tensor, "n"], dtype: torch.dtype) -> Float[Tensor, "*batch n"]:
    """Finite exponential numbers of mean 1, from mixed 64-bit keys and mixed per-token counters.

    63 random bits make a uniform number. Small uniform numbers keep all digits of ``dtype``, and so do the first arrivals.
    The bits are the same on every device; logarithms may differ by the device's rounding, or the native library's.
    """
    if dtype == torch.float32 and (found := native.exponential(keys, bases)) is not None:
        return found
    x = keys ^ bases
    # An arithmetic shift stands for a logical one: torch has no unsigned 64-bit shift on CUDA.
    x.mul_(_signed(_MIX_1)).bitwise_xor_(x >> 29)
    bits = x.mul_(_signed(_MIX_2)).bitwise_and_((1 << 63) - 1)
    below_one = 1 - torch.finfo(dtype).eps / 2  # the largest number that is not 1
    return bits.to(dtype).mul_(-below_one * 2.0**-63).log1p_().neg_()
