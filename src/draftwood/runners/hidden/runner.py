"""The runners of drafters of hidden states: one pass per round for blocks, one per level for EAGLE-3 and MTP heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.errors import PairingError
from draftwood.core.scores import Scores
from draftwood.native.library import TreeExpansion, address
from draftwood.runners.context import token_bytes
from draftwood.runners.hidden.module import DrafterModule
from draftwood.runners.hidden.text import HiddenText
from draftwood.runners.native.memory import RowMemory
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen, SharesBeginnings
from draftwood.runners.rows import RowTable
from draftwood.sampling.rows import Row

_IDLE = 16  # rows with more hidden states to read are not drafted for now, so nothing is read ahead


class HiddenRunner(SharesBeginnings, ABC):
    """A :class:`draftwood.runners.protocols.Runner` of a drafter whose memory is made of the target's hidden states.

    Scores are those of the tokens that the drafter can propose. They are -inf in rows whose hidden states are not known yet:
    nothing is drafted there.

    Args:
        drafter: a drafter in evaluation mode; the target's runner must return the hidden states of
            ``drafter.config.target_layers``.
        passes: its passes by a library, over new entries and nodes of rows, with the table of the entries. A pass that
            scores nodes is the method ``score``, whose arguments depend on the kind of the drafter; ``read`` is one over
            what waits of a text, whose entries are the row that comes later.

    Attributes:
        shift: of :class:`draftwood.runners.hidden.text.HiddenText`.
    """

    max_length: int | None = None
    shift: ClassVar[int]

    def __init__(self, drafter: DrafterModule, passes: Any) -> None:
        self.model: Any = drafter
        self.kind, self._passes = drafter.kind, passes
        self.network, self.engine, self.pads = passes.network, passes.name, passes.pads
        self.token_bytes = token_bytes(drafter.config, drafter.dtype.itemsize)
        self.device: torch.device = drafter.device
        self.forward_seconds = 0.0
        self._tokens = None if drafter.every_token else drafter.draft_tokens.long()
        self._table: RowTable[HiddenText] = RowTable(self._new, self._shared)
        self._end_round()

    @abstractmethod
    def _end_round(self) -> None:
        """Forget the round."""

    @abstractmethod
    def _scores(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Float[Tensor, "row node draft_vocab"]:
        """Scores of new nodes."""

    @abstractmethod
    def _root_kept(self, hidden: Sequence[Hidden]) -> list[bool]:
        """Rows in which the entry of the root becomes one of the text."""

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    @property
    def memory_bytes(self) -> int:
        coming = [] if self._table.coming is None else [self._table.coming[1]]
        texts = [*self._texts, *self._table.kept.values(), *coming]
        return int(self._passes.table.memory_bytes) + sum(text.unread_bytes for text in texts)

    @property
    def _texts(self) -> list[HiddenText]:
        return self._table.parts

    def held(self, row: Row) -> int:
        text = self._table.of(row)
        return text.known if text is not None and not text.start else 0

    def keep(self, row: Row, text: Row) -> None:
        source = self._table.of(row)
        assert source is not None
        self._table.kept[text] = kept = source.for_row(Row(tokens=text.tokens), source.known)  # does not hold ``text``
        self._passes.table.keep(source.entries, kept.entries)

    def memory_of(self, text: Row) -> RowMemory | None:
        if not self.held(text):
            return None
        kept = self._table.kept[text]
        self._passes.read(kept)  # hidden states that wait, as of a text without drafts, have no other place
        memory: RowMemory = self._passes.table.of(kept.entries)
        memory.cut(kept.cached)
        return memory

    def restore(self, text: Row, length: int) -> RowMemory:
        self._table.kept[text] = kept = HiddenText(Row(tokens=text.tokens), self.shift)
        kept.restore(length)
        memory: RowMemory = self._passes.table.restore(kept.entries, length)
        return memory

    def clear(self) -> None:
        self._passes.table.clear()
        self._table.clear()
        self._end_round()

    def set_rows(self, rows: Sequence[Row]) -> None:
        coming = self._table.coming
        self._table.set_rows(rows)
        if coming is not None and coming[1] in self._texts:
            coming[1].fresh = True
        self._passes.table.set_rows([text.entries for text in self._texts])

    def _new(self, row: Row) -> HiddenText:
        return HiddenText(row, self.shift)

    def _shared(self, source: HiddenText, row: Row, length: int) -> HiddenText:
        text = source.for_row(row, length)
        self._passes.table.begin(text.entries, Prefix(source.entries, text.cached))
        return text

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> None:
        start = perf_counter()
        coming = self._table.begin(row, prefix)
        if hidden is not None and len(hidden):
            coming.read(hidden, end)
            self._passes.table.begin(coming.entries, None)  # if hidden states are missing, it begins again
            idle = any(text.unread_tokens > _IDLE for text in self._texts)
            if coming.waiting and not idle:
                self._passes.read(coming)
        self.forward_seconds += perf_counter() - start

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        start = perf_counter()
        tokens, depths, ancestors = np.asarray(tokens), np.asarray(depths), np.asarray(ancestors)
        ready = [text.ready for text in self._texts]
        if any(ready):
            logits = self._scores(tokens, depths, ancestors)
            if not all(ready):
                logits = logits.masked_fill(torch.tensor(ready, device=self.device).logical_not()[:, None, None], -torch.inf)
        else:
            shape = *tokens.shape, len(self.model.draft_tokens)
            logits = torch.full(shape, -torch.inf, device=self.device, dtype=self._passes.dtype)
        self.forward_seconds += perf_counter() - start
        return Scores(logits, tokens=self._tokens)

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        """End the round with the target's hidden states; raises a PairingError without them."""
        if hidden is None:
            raise PairingError(
                "the drafter reads hidden states, but the target's runner returns none: make it with "
                f"hidden_layers={tuple(self.model.config.target_layers)}"
            )
        kept = self._root_kept(hidden)
        ends = [len(text.row.tokens) - 1 for text in self._texts]
        firsts = [end - len(new) for end, new in zip(ends, hidden, strict=True)]
        if any(first > text.known for first, text in zip(firsts, self._texts, strict=True)):
            self._passes.table.clear()  # hidden states are missing: another drafter, or none, was in use
            self._table.coming, kept = None, [False] * len(kept)
            for text, first in zip(self._texts, firsts, strict=True):
                text.begin(first)
            self._passes.table.set_rows([text.entries for text in self._texts])
        for text, new, end, root in zip(self._texts, hidden, ends, kept, strict=True):
            text.read(new, end, root_kept=root)
        self._passes.table.commit([[0] if root else [] for root in kept])
        self._end_round()


@final
class HiddenBlockRunner(HiddenRunner):
    """The runner of a :class:`draftwood.runners.hidden.module.BlockDrafter`.

    The root's scores cost the pass. Scores of other nodes cost one small product each: those of their depth, plus what the
    Markov head says after their token. They are -inf beyond the block.
    """

    shift = 0

    def _end_round(self) -> None:
        self._block: Float[Tensor, "row depth draft_vocab"] | None = None

    def _scores(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Float[Tensor, "row node draft_vocab"]:
        if self._block is None:
            self._block = self._passes.score(self._texts, tokens[:, :1])
        return self._passes.below(self._block, tokens, depths)

    @property
    def block(self) -> int:
        """Depths that a pass scores, the root's included."""
        return int(self.model.config.block)

    @property
    def ready(self) -> bool:
        """Whether the native engine scores a block of every row in this round."""
        return self.engine != "torch" and all(text.ready for text in self._texts)

    def give_block(self, expansion: TreeExpansion, root: Sequence[int]) -> Callable[[PerNode, PerNode], Scores]:
        """Score the block after the roots, of which trees grow in the native library; returns scores after nodes."""
        start = perf_counter()
        block = self._block = self._passes.score(self._texts, np.array(root)[:, None])
        self._passes.give_block(expansion, block)
        expansion.columns = None if self._tokens is None else address(self._tokens, torch.long, expansion.vocab)
        self.forward_seconds += perf_counter() - start
        return lambda tokens, depths: Scores(self._passes.below(block, tokens, depths), tokens=self._tokens)

    def _root_kept(self, hidden: Sequence[Hidden]) -> list[bool]:
        return [False] * len(hidden)


@final
class Eagle3Runner(HiddenRunner):
    """The runner of a drafter with one pass per level: EAGLE-3, or in the native engine an MTP head.

    The memory keeps entries of committed tokens only, all made of the target's hidden states. Those of drafted tokens are
    made again once they are accepted.
    """

    shift = 1

    def _end_round(self) -> None:
        self._ready: list[bool] = []  # rows whose roots have an entry
        self._depths: list[PerNode] = []
        self._states: list[Float[Tensor, "row node width"]] = []

    def _parents(self, depths: PerNode, ancestors: Seen) -> PerNode:
        """The parents of new nodes, 0 for the root."""
        self._depths.append(depths)
        above = np.concatenate(self._depths, axis=1)[:, None] == depths[:, :, None] - 1
        return (ancestors & above).argmax(axis=2)

    def _scores(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Float[Tensor, "row node draft_vocab"]:
        """Scores of new nodes, level by level."""
        self._ready = [text.ready for text in self._texts]
        parents, old, logits, features = self._parents(depths, ancestors), ancestors.shape[2] - tokens.shape[1], [], None
        for first, last in _levels(parents, old):
            if self._states:
                index = torch.as_tensor(parents[:, first:last, None], device=self.device)
                index = index.expand(-1, -1, self.model.config.hidden_size)
                features = torch.cat(self._states, dim=1).gather(1, index)
            part = slice(first, last)
            seen = ancestors[:, part, : old + last]
            states, scores = self._passes.score(self._texts, tokens[:, part], depths[:, part], seen, features)
            self._states.append(states)
            logits.append(scores)
        return torch.cat(logits, dim=1)

    def _root_kept(self, hidden: Sequence[Hidden]) -> list[bool]:
        ready = self._ready if self._states else [False] * len(hidden)
        return [one and len(new) > 0 for one, new in zip(ready, hidden, strict=True)]


def _levels(parents: PerNode, old: int) -> Iterator[tuple[int, int]]:
    """Parts of new nodes whose parents all come before the part, after ``old`` earlier nodes of the round."""
    latest = parents.max(axis=0).tolist()
    first = 0
    for node, parent in enumerate(latest):
        if node > first and parent >= old + first:
            yield first, node
            first = node
    yield first, len(latest)
