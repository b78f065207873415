"""The protocols of a network and its memory. Nothing outside this room knows how a runner stores keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.scores import Scores


@runtime_checkable
class Runner(Protocol):
    """A network and its memory, for target and draft models alike.

    Rows are numbered from 0; rows come with :meth:`add` and leave with :meth:`drop`, between rounds only. A new batch of
    texts begins with :meth:`clear`, then :meth:`add`.

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

    reads_source: bool
    forward_seconds: float

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int | None: ...

    @property
    def device(self) -> torch.device: ...

    def clear(self) -> None:
        """All rows leave, also in the middle of a round: a stream that was closed early leaves one behind."""
        ...

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """New rows, numbered after those that are there.

        Args:
            texts: the rows' prompts without their last token, which is the root; all of it is pending.
            sources: what the encoder of an encoder-decoder model reads, row by row. Models without an encoder ignore them.

        Raises:
            ConfigError: a source is missing or empty, or holds tokens that the encoder does not know.
            CacheError: a source that does not fit the encoder. No row is added then.
        """
        ...

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Scores:
        """Scores at each new node, which sees the text, its ancestors among the ``seen`` nodes so far, and itself. The first
        call of a round also reads what is pending.

        Raises:
            CacheError: the text and the tree do not fit the model's context.
        """
        ...

    def commit(
        self,
        nodes: Sequence[Sequence[int]],
        pending: Sequence[Sequence[int]],
        hidden: Sequence[Float[Tensor, "_token width"]] | None = None,
    ) -> None:
        """End the round.

        Args:
            nodes: per row, the nodes that join the text, in this order.
            pending: per row, the tokens that join it after them and are read later.
            hidden: for a draft model that reads the target's hidden states: :attr:`draftwood.core.rounds.Round.hidden`.
                Other runners ignore it.
        """
        ...

    def drop(self, rows: Sequence[int]) -> None:
        """These rows leave; the others keep their order and are numbered anew."""
        ...


@runtime_checkable
class ModelRunner(Runner, Protocol):
    """A runner of a ``transformers`` model.

    Attributes:
        model: the model, for its configuration and its own forward, whichever library runs it.
        engine: what runs it: a backend, and how the weights were changed where they were.
        network: what is called once per forward, with ``input_ids`` by name: the model, or what was made of it.
    """

    @property
    def model(self) -> Any: ...

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

    @property
    def model(self) -> Any: ...

    @property
    def max_source(self) -> int | None: ...


@runtime_checkable
class BurstRunner(Runner, Protocol):
    """A draft model that can draft a burst: several tokens in one call, each chosen after the one before was read.

    Attributes:
        burst: tokens chosen in one call; 0 where the present rows must be drafted for by :meth:`extend`. A round is drafted
            for in one way or the other.
    """

    @property
    def burst(self) -> int: ...

    def draft_burst(
        self, token: int, path: Sequence[int], noise: Float[Tensor, "burst vocab"] | None, scale: float
    ) -> tuple[list[int], Float[Tensor, "burst scored"]]:
        """Read a new node, then choose and read tokens below it; all choices but the last become nodes.

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

    @property
    def block(self) -> int: ...

    def score_block(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        """Scores of the ``count`` tokens after the root, from one forward; the first call of a round, and the only one.

        Raises:
            ConfigError: ``count`` is below 1 or above ``block``.
        """
        ...


@runtime_checkable
class LongBlockRunner(BlockRunner, Protocol):
    """A :class:`BlockRunner` whose draft model also fills blocks longer than ``block``."""

    def longer(self, block: int) -> BlockRunner:
        """The same draft model as a runner of blocks of up to ``block`` tokens, with a memory of its own.

        Raises:
            ConfigError: it cannot fill them.
        """
        ...
