"""The protocols of runners. Nothing outside this package knows how a runner stores keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.draft_kind import DraftKind
from draftwood.core.scores import Scores
from draftwood.sampling.rows import Row

PerNode: TypeAlias = Int[np.ndarray | Tensor, "row node"]
"""A number for each new node: its token, or its depth. Drafters give arrays of the host."""
Seen: TypeAlias = Bool[np.ndarray | Tensor, "row node seen"]
"""Which nodes of the round so far each new node sees."""
Hidden: TypeAlias = Float[Tensor, "_token width"]
"""Hidden states of successive tokens of a text."""


class Prefix(NamedTuple):
    """The beginning that a new text shares with a present row, or with a text that was kept: its first ``length`` tokens."""

    row: Row
    length: int


@runtime_checkable
class Runner(Protocol):
    """A network and its cache, for target and draft models alike.

    A new batch begins with :meth:`clear`. Between two rounds :meth:`set_rows` says which rows the next one has.

    A row owns its text. Its last token is the root of the next tree. Of the tokens before it, the pending ones are not in
    the cache yet: the next round reads them. Within a round ``extend`` appends nodes, numbered 0, 1, ... in order; the root
    is node 0. ``commit`` ends the round: it keeps some nodes and discards the rest. A runner may compact its cache at any
    time.

    Attributes:
        vocab_size: number of scores per node.
        max_length: the longest text in tokens, None if unlimited.
        kind: what the model is as a draft.
        pads: a forward pads its rows to one length, so a short row costs as much as a long one.
        device: device of input tokens and of scores.
        forward_seconds: wall time of all forwards of this runner.
    """

    kind: DraftKind
    pads: bool
    forward_seconds: float

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int | None: ...

    @property
    def device(self) -> torch.device: ...

    def clear(self) -> None:
        """Remove all rows, also in the middle of a round: a stream that is closed early leaves one unfinished."""

    def set_rows(self, rows: Sequence[Row]) -> None:
        """The rows from the next round on. A row is recognised by itself, not by its tokens; one that is missing is gone.

        Rows that stay keep their order, and new ones come last. Of a new row all tokens before the root are pending, except
        what :meth:`prefill` has read or copied. Models without an encoder ignore sources.

        Raises:
            ConfigError: a source is missing or empty, or holds tokens that the encoder does not know.
            CacheError: a source does not fit the encoder. Nothing changes then.
        """

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> Hidden | None:
        """Read the first tokens of a row that comes later, alongside the rows; also in several calls, each with more of it.

        :meth:`set_rows` then takes it as the only new row. Other new rows replace it, and :meth:`clear` forgets it. A runner
        may ignore this, and read the whole text as any other.

        Args:
            row: the row.
            end: number of tokens up to where it is read; at most what was copied if nothing is to be read.
            prefix: a beginning whose memory is copied; the first call of a row uses it.
            hidden: the target's hidden states of the last of these tokens, for drafters that read them.

        Returns:
            The hidden states of the tokens that were read and not copied; None without hidden layers.
        """

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        """Scores at each new node. A node sees the text, its ancestors among the ``seen`` nodes so far, and itself.

        The first call of a round also reads the pending tokens.

        Raises:
            CacheError: the text and the tree do not fit the model's context.
        """

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        """End the round; the rows hold its tokens already.

        Args:
            nodes: per row, the nodes whose tokens come next in the row's text, in this order.
            hidden: :attr:`draftwood.core.rounds.Round.hidden`, for drafters that read the target's hidden states; other
                runners ignore it.
        """


class ReadsAtOnce:
    """For runners that read a text at once when it joins, or need not read it."""

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> None:
        """Nothing is read before the row joins."""


class SharesBeginnings:
    """For runners that share any beginning of a text: they keep no running states."""

    row_bytes = 0

    if TYPE_CHECKING:

        def held(self, row: Row) -> int: ...

    def reach(self, row: Row, length: int) -> int:
        """As :meth:`KeepsTexts.reach`."""
        return min(length, self.held(row))

    def mark(self, row: Row, *, regular: bool) -> None:
        """It needs none."""

    def thin_marks(self) -> bool:
        """It has none."""
        return False


@runtime_checkable
class KeepsTexts(Runner, Protocol):
    """A runner whose memory of texts that have ended serves later ones that begin alike."""

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of a token."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of the keys and values of all rows and kept texts; what several of them share counts once."""

    def keep(self, row: Row, text: Row) -> None:
        """Keep the memory of a present row between two rounds as that of ``text``, for as long as ``text`` lives.

        Args:
            row: the row.
            text: what :class:`Prefix` then names; it has the same tokens, and is never a row of a batch.
        """

    @property
    def row_bytes(self) -> int:
        """Bytes of what a row has in memory whatever the length of its text; 0 without running states."""

    def held(self, row: Row) -> int:
        """Number of a row's first tokens that are in memory, of a present row or a kept text; 0 of any other."""

    def reach(self, row: Row, length: int) -> int:
        """Of a row's first ``length`` tokens, those that another row can share: up to the last one behind which running
        states are kept."""

    def mark(self, row: Row, *, regular: bool) -> None:
        """Keep the running states of a row that comes later behind what was read of it, for rows that share so much. Copies
        at a regular distance make room for others."""

    def thin_marks(self) -> bool:
        """Free every second one of the rows, at last all; False if there is none."""


@runtime_checkable
class ModelRunner(Runner, Protocol):
    """A runner of a model of ``transformers``.

    Attributes:
        engine: the backend, and the change of the weights or the instruction set, if any.
        model: the model, whichever library runs it; it has the configuration and a reference forward.
    """

    @property
    def engine(self) -> str: ...

    @property
    def model(self) -> Any: ...


@runtime_checkable
class TargetRunner(ModelRunner, Protocol):
    """A runner of a causal model; what other rooms may ask of a target.

    Attributes:
        same_bits: the scores of a token are the same bits whatever else a forward reads.
        network: the module that is called once per forward, with the keyword ``input_ids``.
        token_bytes: bytes of a token's keys and values; 0 if unknown.
        row_bytes: as for :class:`KeepsTexts`.
    """

    same_bits: bool

    @property
    def network(self) -> nn.Module: ...

    @property
    def token_bytes(self) -> int: ...

    @property
    def row_bytes(self) -> int: ...

    def another(self) -> TargetRunner:
        """A runner of the same network with a memory of its own, which holds no rows."""


@runtime_checkable
class SourceRunner(ModelRunner, Protocol):
    """A runner of an encoder-decoder model.

    Attributes:
        max_source: the longest source in tokens, None if unlimited.
    """

    @property
    def max_source(self) -> int | None: ...


@runtime_checkable
class BlockRunner(Runner, Protocol):
    """A draft model that scores a block of future tokens in one forward, each independently of those before it.

    As a :class:`Runner` it makes this forward for the root. Deeper nodes of the round get the scores of their depth, so
    every drafter of trees can use it.

    Attributes:
        block: the longest block in tokens, and the greatest depth of a tree.
    """

    @property
    def block(self) -> int: ...

    def score_block(self) -> Float[Tensor, "row block vocab"]:
        """Scores of the tokens after the roots, from one forward. It is the only scoring call of a round."""

    def longer(self, block: int) -> BlockRunner:
        """A runner of the same model for blocks of ``block`` tokens, without rows.

        Raises:
            ConfigError: the model cannot fill them.
        """
