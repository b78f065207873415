"""Encoded sources of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from draftwood.runners.rows import padded_rows

_PADDED = (1, 1, 3, 1)  # the padded dimension of each part


class Sources(NamedTuple):
    """Encoded sources, a row each. What a decoder does not read is None.

    Attributes:
        mask: True at tokens, False at padding.
        states: the output of the encoder.
        memory: keys and values of the decoder's layers, alternating.
        answers: attention of the masked positions 0, 1, ... to the source.
    """

    mask: Bool[Tensor, "row source"]
    states: Float[Tensor, "row source width"] | None = None
    memory: Float[Tensor, "row part head source dim"] | None = None
    answers: Float[Tensor, "row position width"] | None = None

    def picked(self, rows: Sequence[int]) -> Sources:
        """These rows, in this order."""
        index = torch.tensor(rows, dtype=torch.long, device=self.mask.device)
        return Sources(*(None if part is None else part.index_select(0, index) for part in self))

    def joined(self, other: Sources) -> Sources:
        """These rows, then the others, padded to one length; both have the same answers."""
        parts = zip(self, other, _PADDED, strict=True)
        return Sources(*(None if a is None or b is None else padded_rows(a, b, dim) for a, b, dim in parts))
