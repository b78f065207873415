"""The number format to train in: bfloat16 where its products are fast, float32 elsewhere.

Processors without bfloat16 products emulate them, many times slower than float32. Saved weights are bfloat16 in either case.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter

import torch

_SIZE = 256  # rows and columns of the timed matrices
_REPEATS = 3  # the fastest counts: other processes may delay one


@cache
def number_format(device_type: str) -> torch.dtype:
    """The faster of float32 and bfloat16 on this kind of device.

    On a CPU, small products of both are timed, once a process.
    """
    if device_type != "cpu":
        return torch.bfloat16
    return min((torch.float32, torch.bfloat16), key=_seconds)


@contextmanager
def autocast(device: torch.device) -> Iterator[None]:
    """Products in :func:`number_format`, over float32 weights; those of norms too, of which PyTorch would warn."""
    enabled = number_format(device.type) is torch.bfloat16
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
        yield


def _seconds(dtype: torch.dtype) -> float:
    matrix, times = torch.ones(_SIZE, _SIZE, dtype=dtype), []
    for _ in range(_REPEATS):
        began = perf_counter()
        matrix @ matrix
        times.append(perf_counter() - began)
    return min(times)
