"""What a masked-block drafter reads: encoded source sentences. Its network is imported only where there is one."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.runners.rows import joined_masks, padded_rows

MASKED_BLOCK: Final = "masked_block"
"""The model type of masked-block drafters."""


def is_masked_block(model: Any) -> bool:
    """Whether a model is a masked-block drafter."""
    return getattr(getattr(model, "config", None), "model_type", None) == MASKED_BLOCK


class Source(NamedTuple):
    """A batch of encoded source sentences.

    Attributes:
        embedded, states: the sentences before and after the encoder.
        mask: False at padding; None without padding.
        answers: attention of the masked positions 0, 1, ... to the source; it depends on the source only.
    """

    embedded: Float[Tensor, "row source width"]
    states: Float[Tensor, "row source width"]
    mask: Bool[Tensor, "row source"] | None
    answers: Float[Tensor, "row position width"] | None = None

    def picked(self, rows: Int[Tensor, "kept"]) -> Source:
        """Some of the sentences."""
        mask, answers = (None if part is None else part[rows] for part in (self.mask, self.answers))
        return Source(self.embedded[rows], self.states[rows], mask, answers)

    def joined(self, other: Source) -> Source:
        """These sentences, then the others, padded to one length; with the answers for positions that both have."""
        mask, answers = joined_masks(self.mask, other.mask, self.states, other.states), None
        if self.answers is not None and other.answers is not None:
            known = min(self.answers.shape[1], other.answers.shape[1])
            answers = torch.cat([self.answers[:, :known], other.answers[:, :known]])
        embedded, states = padded_rows(self.embedded, other.embedded, 1), padded_rows(self.states, other.states, 1)
        return Source(embedded, states, mask, answers)
