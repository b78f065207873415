"""What the runners of drafters of hidden states have in common: the texts of their rows, and when these are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.core.errors import PairingError
from draftwood.core.scores import Scores
from draftwood.runners.context import token_bytes
from draftwood.runners.hidden.text import HiddenText
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen
from draftwood.runners.rows import changes, remaining
from draftwood.sampling.rows import Row

_IDLE = 16  # rows with more hidden states to read are not drafted for now, so nothing is read ahead


class Passes(ABC):
    """Passes over new entries and nodes of rows, with the table of the entries.

    A pass that scores nodes is the method ``score``, whose arguments depend on the kind of the drafter.

    Args:
        network: makes a pass.
        table: the rows' entries, a :class:`draftwood.runners.slots.SlotTable` or another one with its methods.
        width: numbers of a token's hidden states.
        dtype: of hidden states and scores.
        device: of the same.

    Attributes:
        engine, pads: of the runner.
        shift: of :class:`HiddenText`.
    """

    engine: str
    pads: bool
    shift = 0

    def __init__(self, network: nn.Module, table: Any, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.network: Any = network
        self.table = table
        self.dtype = dtype
        self._nothing = torch.zeros(1, width, dtype=dtype, device=device)

    @abstractmethod
    def read(self, text: HiddenText) -> None:
        """Read what waits of a text, whose entries are the row that comes later."""


P = TypeVar("P", bound=Passes)


class HiddenRunner(ABC, Generic[P]):
    """A :class:`draftwood.runners.protocols.Runner` of a drafter whose memory is made of the target's hidden states.

    Scores are those of the tokens that the drafter can propose. They are -inf in rows whose hidden states are not known yet:
    nothing is drafted there.

    Args:
        drafter: a drafter in evaluation mode.
        passes: its passes by a library.
    """

    reads_source = False
    reads_hidden = True
    max_length: int | None = None

    def __init__(self, drafter: Any, passes: P) -> None:
        self.model, self._passes = drafter, passes
        self.network, self.engine, self.pads = passes.network, passes.engine, passes.pads
        self.device: torch.device = drafter.device
        self.forward_seconds = 0.0
        tokens = drafter.draft_tokens.long()
        whole = torch.equal(tokens, torch.arange(self.vocab_size, device=tokens.device))
        self._tokens = None if whole else tokens
        self._texts: list[HiddenText] = []
        self._coming: HiddenText | None = None  # of a row that comes later
        self._kept: WeakKeyDictionary[Row, HiddenText] = WeakKeyDictionary()
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
    def token_bytes(self) -> int:
        return token_bytes(self.model.config, self.model.dtype.itemsize)

    @property
    def memory_bytes(self) -> int:
        texts = [*self._texts, *self._kept.values(), *([] if self._coming is None else [self._coming])]
        return int(self._passes.table.memory_bytes + sum(part.nbytes for text in texts for part in text.waiting))

    def _text_of(self, row: Row | None) -> HiddenText | None:
        """A present row, or a text that was kept."""
        return next((text for text in self._texts if text.row is row), None) or (row and self._kept.get(row))

    def held(self, row: Row) -> int:
        text = self._text_of(row)
        return text.known if text is not None and not text.start else 0

    def keep(self, row: Row, text: Row) -> None:
        source = self._text_of(row)
        assert source is not None
        self._kept[text] = kept = source.for_row(Row(tokens=text.tokens), source.known)  # does not hold ``text``
        self._passes.table.keep(source.entries, kept.entries)

    def clear(self) -> None:
        self._passes.table.clear()
        self._texts, self._coming = [], None
        self._end_round()

    def set_rows(self, rows: Sequence[Row]) -> None:
        gone, new = changes([text.row for text in self._texts], rows)
        if len(new) == 1 and self._coming is not None and self._coming.row is new[0]:
            self._coming.fresh = True
            joining = [self._coming]
        else:
            joining = [HiddenText(row, self._passes.shift) for row in new]
        self._coming = None if new else self._coming
        self._texts = [*remaining(self._texts, gone), *joining]
        self._passes.table.set_rows([text.entries for text in self._texts])

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> None:
        start = perf_counter()
        with torch.inference_mode():
            coming = self._begun(row, prefix)
            if hidden is not None and len(hidden):
                coming.read(hidden, end)
                self._passes.table.begin(coming.entries, None)  # if hidden states are missing, it begins again
                idle = any(sum(map(len, text.waiting)) > _IDLE for text in self._texts)
                if coming.waiting and not idle:
                    self._passes.read(coming)
        self.forward_seconds += perf_counter() - start

    def _begun(self, row: Row, prefix: Prefix | None) -> HiddenText:
        """The text of a row that comes later; a new one has what is known of its beginning."""
        if self._coming is None or self._coming.row is not row:
            source, known = None if prefix is None else self._text_of(prefix.row), None
            if prefix is None or source is None:
                text = HiddenText(row, self._passes.shift)
            else:
                text = source.for_row(row, prefix.length)
                known = Prefix(source.entries, text.cached)
            self._passes.table.begin(text.entries, known)
            self._coming = text
        return self._coming

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        start = perf_counter()
        tokens, depths, ancestors = np.asarray(tokens), np.asarray(depths), np.asarray(ancestors)
        ready = [text.ready for text in self._texts]
        with torch.inference_mode():
            if any(ready):
                logits = self._scores(tokens, depths, ancestors)
                if not all(ready):
                    logits[[not one for one in ready]] = -torch.inf
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
            self._coming, kept = None, [False] * len(kept)
            for text, first in zip(self._texts, firsts, strict=True):
                text.begin(first)
            self._passes.table.set_rows([text.entries for text in self._texts])
        for text, new, end, root in zip(self._texts, hidden, ends, kept, strict=True):
            text.read(new, end, root_kept=root)
        self._passes.table.commit([[0] if root else [] for root in kept])
        self._end_round()
