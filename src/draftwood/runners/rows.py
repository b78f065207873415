"""Rows that come and go, and tensors of rows that are padded and joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.sampling.rows import Row

T = TypeVar("T")


def changes(old: Sequence[Row], rows: Sequence[Row]) -> tuple[list[int], list[Row]]:
    """The indices of old rows that have gone, and the new rows, which come last."""
    present = set(rows)
    gone = [index for index, row in enumerate(old) if row not in present]
    stay = remaining(old, gone)
    assert list(rows[: len(stay)]) == stay, "rows that stay keep their order, and new ones come last"
    return gone, list(rows[len(stay) :])


def remaining(items: Iterable[T], gone: Sequence[int]) -> list[T]:
    """The items, one per row, of the rows that are not in ``gone``."""
    return [item for row, item in enumerate(items) if row not in gone]


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of tokens at the beginning of both texts."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # they part after ``low`` tokens or more, and before ``high``
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def padded_rows(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """The rows of both tensors, in this order; the one that is shorter in ``dim`` is padded with zeros."""
    size = max(first.shape[dim], second.shape[dim])
    parts = []
    for part in (first, second):
        missing = (*part.shape[:dim], size - part.shape[dim], *part.shape[dim + 1 :])
        parts.append(torch.cat([part, part.new_zeros(missing)], dim=dim) if part.shape[dim] < size else part)
    return torch.cat(parts)


def padded_tokens(
    rows: Sequence[Sequence[int]], padding: int, device: torch.device
) -> tuple[Int[Tensor, "row longest"], Bool[Tensor, "row longest"]]:
    """Rows padded on the right, and their mask: True at tokens."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths
