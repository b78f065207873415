"""Rows that come and go, as lists and tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def staying(count: int, gone: Sequence[int]) -> list[int]:
    """Of the rows below ``count`` those that are not in ``gone``."""
    return [row for row in range(count) if row not in gone]


def padded_rows(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """The rows of both, one below the other; the one that is shorter in ``dim`` is filled up with zeros."""
    size = max(first.shape[dim], second.shape[dim])
    parts = []
    for part in (first, second):
        missing = (*part.shape[:dim], size - part.shape[dim], *part.shape[dim + 1 :])
        parts.append(torch.cat([part, part.new_zeros(missing)], dim=dim) if part.shape[dim] < size else part)
    return torch.cat(parts)
