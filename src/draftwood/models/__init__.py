"""Networks and their memory. Nothing above this floor knows how a runner stores keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class Runner(Protocol):
    """A network and its memory, for target and draft models alike.

    Per row the committed text is ``cached + pending``; the root of the next tree is its last token and is never pending.
    Within a round ``extend`` appends nodes, numbered 0, 1, ... in the order they came (the root is node 0); ``commit`` ends
    the round: it keeps some nodes and forgets the rest. A runner may compact its memory whenever it likes.

    Attributes:
        vocab_size: number of scores per node.
        max_length: the longest text in tokens, None if unlimited.
        device: where tokens are wanted and scores come from.
        forward_seconds: wall time spent in forwards since the runner was made.
    """

    vocab_size: int
    max_length: int | None
    device: torch.device
    forward_seconds: float

    def start(self, texts: Sequence[Sequence[int]]) -> None:
        """Forget everything; ``texts`` are the rows' prompts without their last token, which is the root."""
        ...

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        """Scores after each new node, which sees the text, its ancestors among the ``seen`` nodes so far, and itself.

        Raises:
            CacheError: the text and the tree do not fit the model's context.
        """
        ...

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        """End the round: per row, ``nodes`` join the text in this order, then the tokens ``pending``, seen later."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order. Between rounds only."""
        ...
