"""What a network and its memory offer. Nothing above this floor knows how a runner stores keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@runtime_checkable
class Runner(Protocol):
    """A network and its memory, for target and draft models alike.

    Per row the committed text is ``cached + pending``; the root of the next tree is its last token and is never pending.
    Within a round ``extend`` appends nodes, numbered 0, 1, ... in the order they came (the root is node 0); ``commit`` ends
    the round: it keeps some nodes and forgets the rest. A runner may compact its memory whenever it likes.

    Attributes:
        vocab_size: number of scores per node.
        max_length: the longest text in tokens, None if unlimited.
        reads_source: the model has an encoder, and every row a source.
        device: where tokens are wanted and scores come from.
        forward_seconds: wall time spent in forwards since the runner was made.
    """

    vocab_size: int
    max_length: int | None
    reads_source: bool
    device: torch.device
    forward_seconds: float

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """Forget everything; ``texts`` are the rows' prompts without their last token, which is the root; ``sources`` are
        what the encoder of an encoder-decoder model reads, row by row. Models without an encoder ignore them.

        Raises:
            CacheError: a source that does not fit the encoder.
        """
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


@runtime_checkable
class ModelRunner(Runner, Protocol):
    """A runner of a ``transformers`` model.

    Attributes:
        model: the model; whoever runs it, its configuration and its own forward are asked here.
        engine: what runs it: a backend, and how the weights were changed where they were.
        network: what is called once per forward, with ``input_ids`` by name: the model, or what was made of it.
    """

    model: Any

    @property
    def engine(self) -> str: ...

    @property
    def network(self) -> nn.Module: ...


@runtime_checkable
class SourceRunner(Runner, Protocol):
    """A runner of an encoder-decoder model.

    Attributes:
        model: the ``transformers`` model.
        max_source: the longest source in tokens, None if unlimited.
    """

    model: Any

    @property
    def max_source(self) -> int | None: ...


@runtime_checkable
class ChainRunner(Runner, Protocol):
    """A draft model that can choose several tokens in one call, each knowing those before it.

    Attributes:
        span: tokens chosen in one call; 0 where the texts must be drafted for by :meth:`extend`. A round is drafted for in
            one way or the other.
    """

    @property
    def span(self) -> int: ...

    def chain(
        self, token: int, path: Sequence[int], noise: Float[Tensor, "span vocab"] | None, scale: float
    ) -> tuple[list[int], Float[Tensor, "span scored"]]:
        """Go on behind a new node and then behind one's own choices, of which all but the last become nodes.

        Args:
            token: the new node's; the root's at first.
            path: numbers of the nodes above it, the root first.
            noise: for each choice, over the target's vocabulary; None for no noise.
            scale: of the scores, before noise is added.

        Returns:
            The choices, each the best by score and noise, and the scores that they were chosen from.
        """
        ...


@runtime_checkable
class BlockRunner(Runner, Protocol):
    """A draft model that scores a whole block of coming tokens in one forward, each without knowing those before it.

    As a :class:`Runner` it makes that forward for the root; deeper nodes of the round get the scores of their depth, so
    that every way of growing trees works on it.

    Attributes:
        block: the longest block in tokens; it ends every tree.
    """

    block: int

    def score_block(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        """Scores of the ``count`` tokens after the root, from one forward; the first call of a round, and the only one.

        Raises:
            ConfigError: ``count`` is below 1 or above ``block``.
        """
        ...


@runtime_checkable
class LongBlockRunner(BlockRunner, Protocol):
    """A :class:`BlockRunner` whose draft model can be asked for longer blocks than ``block`` too."""

    def longer(self, block: int) -> BlockRunner:
        """The same draft model as a runner of blocks of up to ``block`` tokens, with a memory of its own.

        Raises:
            ConfigError: it cannot fill them.
        """
        ...
