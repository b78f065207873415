"""What the runners of drafters of hidden states have in common: the texts of their rows, and when these are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.errors import PairingError
from draftwood.core.scores import Scores
from draftwood.core.settings import Backend
from draftwood.runners.context import token_bytes
from draftwood.runners.hidden.module import DrafterModule
from draftwood.runners.hidden.text import HiddenText
from draftwood.runners.native.memory import RowMemory
from draftwood.runners.native.network import Engine
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen, SharesBeginnings
from draftwood.runners.rows import RowTable
from draftwood.sampling.rows import Row

_IDLE = 16  # rows with more hidden states to read are not drafted for now, so nothing is read ahead


class HiddenRunner(SharesBeginnings, ABC):
    """A :class:`draftwood.runners.protocols.Runner` of a drafter whose memory is made of the target's hidden states.

    Scores are those of the tokens that the drafter can propose. They are -inf in rows whose hidden states are not known yet:
    nothing is drafted there.

    Args:
        drafter: a drafter in evaluation mode.
        target: its target, a causal language model; the target's runner must return the hidden states of
            ``drafter.config.target_layers``.
        engine: the backend, ``native`` or ``torch``.
        lender: the target's engine of the native backend, whose head is not packed again where the drafter has the same.

    Attributes:
        in_native, in_torch: classes of the passes by both libraries, over new entries and nodes of rows, with the table of
            the entries. A pass that scores nodes is the method ``score``, whose arguments depend on the kind of the drafter;
            ``read`` is one over what waits of a text, whose entries are the row that comes later.
        shift: of :class:`draftwood.runners.hidden.text.HiddenText`.

    Raises:
        ConfigError: the native library is missing.
        ModelError: the native engine does not run the drafter.
    """

    max_length: int | None = None
    in_native: ClassVar[type[Any]]
    in_torch: ClassVar[str]
    shift: ClassVar[int]

    def __init__(
        self, drafter: DrafterModule, target: Any, *, engine: Backend = "torch", lender: Engine | None = None
    ) -> None:
        self.model: Any = drafter
        self.kind = drafter.kind
        if engine == "native":
            passes = self.in_native(drafter, target, lender)
        else:  # imports transformers
            passes = getattr(import_module("draftwood.runners.hidden.torch_passes"), self.in_torch)(drafter, target)
        self._passes = passes
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
        return int(self._passes.table.memory_bytes + sum(part.nbytes for text in texts for part in text.waiting))

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
            idle = any(sum(map(len, text.waiting)) > _IDLE for text in self._texts)
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
