"""The result of a model's forward for the nodes of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class Peaks(NamedTuple):
    """The highest score of each node, and its token: the first one if several have it. NaN if a score is."""

    scores: Float[np.ndarray, "row node"]
    tokens: Int[np.ndarray, "row node"]


@final
@dataclass(frozen=True)
class Scores:
    """Logits of the new nodes, and hidden states if the runner was built to return them.

    Attributes:
        logits: scores of the token that follows each node, over the whole vocabulary or over ``tokens``.
        hidden: hidden states of the runner's ``hidden_layers`` at each node, concatenated; None without layers.
        read: per row, hidden states of the committed tokens that this call read before its first node, in the order of the
            text: the prompt in the first round, and other pending tokens. None without layers.
        peaks: the highest logits, from a runner that finds them on the way.
        tokens: the tokens of ``logits``, each once, where a draft model can propose some only; None for all tokens.
    """

    logits: Float[Tensor, "row node scored"]
    hidden: Float[Tensor, "row node width"] | None = None
    read: Sequence[Float[Tensor, "_token width"]] | None = None
    tokens: Int[Tensor, "scored"] | None = None
    peaks: Peaks | None = None


def at_depths(
    scores: Float[Tensor, "row depth n"], depths: Int[np.ndarray | Tensor, "row node"]
) -> Float[Tensor, "row node n"]:
    """The scores of a block at the depths of nodes; -inf beyond the block."""
    (rows, block, _), at = scores.shape, torch.as_tensor(depths, device=scores.device)
    found = scores[torch.arange(rows, device=scores.device).unsqueeze(1), at.clamp(max=block - 1)]
    return found.masked_fill_((at >= block).unsqueeze(-1), -torch.inf)


def dense(values: Float[Tensor, "row node n"], tokens: Int[Tensor, "n"], vocab: int) -> Float[Tensor, "row node _"]:
    """Values over a vocabulary; -inf except at ``tokens``."""
    return values.new_full((*values.shape[:2], vocab), -torch.inf).index_copy_(-1, tokens, values)
