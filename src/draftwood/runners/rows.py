"""Rows that come and go, tensors of rows that are padded and joined, and the encoded sources of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.runners.protocols import Prefix
from draftwood.sampling.rows import Row

T = TypeVar("T")
_PADDED = (1, 1, 3)  # the padded dimension of each part of sources


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


class RowTable(Generic[T]):
    """The rows of a runner, and one thing that it has for each of them.

    Args:
        make: the part of a new row.
        share: the part of a new row that shares this many tokens with the row of a part.

    Attributes:
        rows, parts: the present rows, in order, and what the runner has for them.
        coming: a row that is read before it joins, and its part; None if there is none.
        kept: the parts of texts that stay when their rows go.
    """

    def __init__(self, make: Callable[[Row], T], share: Callable[[T, Row, int], T]) -> None:
        self._make, self._share = make, share
        self.kept: WeakKeyDictionary[Row, T] = WeakKeyDictionary()
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self.rows: list[Row] = []
        self.parts: list[T] = []
        self.coming: tuple[Row, T] | None = None

    def set_rows(self, rows: Sequence[Row]) -> tuple[list[int], list[Row]]:
        """Change the rows. The one that comes joins with its part, or goes when others join.

        Returns:
            The indices of old rows that have gone, and the new rows whose parts were made.
        """
        gone, new = changes(self.rows, rows)
        read = self.part_read(new[0]) if len(new) == 1 else None
        made = new if read is None else []
        joining = list(map(self._make, new)) if read is None else [read]
        self.coming = None if new else self.coming
        self.rows, self.parts = list(rows), [*remaining(self.parts, gone), *joining]
        return gone, made

    def part_read(self, row: Row) -> T | None:
        """The part of this row if it is the one that comes."""
        return self.coming[1] if self.coming is not None and self.coming[0] is row else None

    def begin(self, row: Row, prefix: Prefix | None) -> T:
        """The part of a row that comes later; a new one has what is known of its beginning."""
        if (found := self.part_read(row)) is None:
            source = None if prefix is None else self.of(prefix.row)
            found = self._make(row) if prefix is None or source is None else self._share(source, row, prefix.length)
            self.coming = row, found
        return found

    def of(self, row: Row) -> T | None:
        """The part of a present row, of the one that comes, or of a text that was kept; None of any other."""
        if (read := self.part_read(row)) is not None:
            return read
        return self.parts[self.rows.index(row)] if row in self.rows else self.kept.get(row)


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


class Sources(NamedTuple):
    """Encoded sources, a row each. What a decoder does not read is None.

    Attributes:
        mask: True at tokens, False at padding.
        states: the output of the encoder.
        memory: keys and values of the decoder's layers, alternating.
    """

    mask: Bool[Tensor, "row source"]
    states: Float[Tensor, "row source width"] | None = None
    memory: Float[Tensor, "row part head source dim"] | None = None

    def picked(self, rows: Sequence[int]) -> Sources:
        """These rows, in this order."""
        index = torch.tensor(rows, dtype=torch.long, device=self.mask.device)
        return Sources(*(None if part is None else part.index_select(0, index) for part in self))

    def joined(self, other: Sources) -> Sources:
        """These rows, then the others, padded to one length."""
        parts = zip(self, other, _PADDED, strict=True)
        return Sources(*(None if a is None or b is None else padded_rows(a, b, dim) for a, b, dim in parts))


@torch.inference_mode()
def sources_of(
    known: Sources | None, old: Sequence[Row], rows: Sequence[Row], encode: Callable[[Sequence[Row]], Sources]
) -> tuple[Sources | None, list[int] | None]:
    """The sources of rows that come and go, of which new ones are encoded; and of the old rows those that stay, where no new
    ones come."""
    gone, new = changes(old, rows)
    kept, encoded = remaining(range(len(old)), gone), encode(new) if new else None
    if known is not None and gone:
        known = known.picked(kept) if kept else None
    if encoded is not None:
        known = encoded if known is None else known.joined(encoded)
    return known, None if new else kept
