"""The result of a model's forward for the nodes of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor


@final
@dataclass(frozen=True)
class Scores:
    """Logits of the new nodes, and hidden states if the runner was built to return them.

    Attributes:
        logits: scores of the token that follows each node.
        hidden: hidden states of the runner's ``hidden_layers`` at each node, concatenated; None without layers.
        read: per row, hidden states of the committed tokens that this call read before its first node, in the order of the
            text: the prompt in the first round, and other pending tokens. None without layers.
    """

    logits: Float[Tensor, "row node vocab"]
    hidden: Float[Tensor, "row node width"] | None = None
    read: Sequence[Float[Tensor, "_token width"]] | None = None
