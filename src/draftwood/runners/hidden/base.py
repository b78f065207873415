"""What the runners of drafters of hidden states have in common: the texts of their rows, and when these are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.scores import Scores
from draftwood.runners.context import token_bytes
from draftwood.runners.hidden.layers import proposed
from draftwood.runners.hidden.prefill import HiddenPrefill
from draftwood.runners.hidden.text import HiddenText
from draftwood.runners.pairing import known_hidden
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen
from draftwood.runners.rows import changes, remaining
from draftwood.sampling.rows import Row

_IDLE = 16  # rows with more hidden states to read are not drafted for now, so nothing is read ahead


class HiddenRunner(ABC):
    """A :class:`draftwood.runners.protocols.Runner` of a drafter whose memory is made of the target's hidden states.

    Scores are those of the tokens that the drafter can propose. They are -inf in rows whose hidden states are not known yet:
    nothing is drafted there.

    Args:
        drafter: a drafter in evaluation mode.
        passes: its passes by a library, with the table of the rows' entries.
    """

    reads_source = False
    reads_hidden = True
    max_length: int | None = None

    def __init__(self, drafter: Any, passes: Any) -> None:
        self.model, self._passes = drafter, passes
        self.network, self.engine, self.pads = passes.network, passes.engine, passes.pads
        self.forward_seconds = 0.0
        self._tokens = proposed(drafter.draft_tokens, self.vocab_size)
        self._prefill = HiddenPrefill(passes)
        self._texts: list[HiddenText] = []
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
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    @property
    def token_bytes(self) -> int:
        return token_bytes(self.model.config, self.model.dtype.itemsize)

    @property
    def memory_bytes(self) -> int:
        waiting = sum(part.nbytes for text in (*self._texts, *self._kept.values()) for part in text.waiting)
        return int(self._passes.memory_bytes + waiting + self._prefill.unread_bytes)

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
        self._passes.keep(source.entries, kept.entries)

    def clear(self) -> None:
        self._passes.table.clear()
        self._texts = []
        self._prefill.clear()
        self._end_round()

    def set_rows(self, rows: Sequence[Row]) -> None:
        gone, new = changes([text.row for text in self._texts], rows)
        joins = bool(new) and self._prefill.reads(new[-1])
        begun = [HiddenText(row, self._passes.shift) for row in (new[:-1] if joins else new)]
        self._texts = [*remaining(self._texts, gone), *begun]
        self._passes.table.set_rows([text.entries for text in self._texts])
        if joins:
            self._texts.append(self._prefill.join())

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> None:
        start = perf_counter()
        with torch.inference_mode():
            self._prefill.begin(row, *((None, 0) if prefix is None else (self._text_of(prefix.row), prefix.length)))
            if hidden is not None and len(hidden):
                idle = any(sum(map(len, text.waiting)) > _IDLE for text in self._texts)
                self._prefill.read(hidden, end, now=not idle)
        self.forward_seconds += perf_counter() - start

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        start = perf_counter()
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
        hidden = known_hidden(hidden, f"hidden_layers={tuple(self.model.config.target_layers)}")
        kept = self._root_kept(hidden)
        ends = [len(text.row.tokens) - 1 for text in self._texts]
        firsts = [end - len(new) for end, new in zip(ends, hidden, strict=True)]
        if any(first > text.known for first, text in zip(firsts, self._texts, strict=True)):
            self._passes.table.clear()  # hidden states are missing: another drafter, or none, was in use
            kept = [False] * len(kept)
            for text, first in zip(self._texts, firsts, strict=True):
                text.begin(first)
            self._passes.table.set_rows([text.entries for text in self._texts])
        for text, new, end, root in zip(self._texts, hidden, ends, kept, strict=True):
            text.read(new, end, root_kept=root)
        self._passes.table.commit([[0] if root else [] for root in kept])
        self._end_round()
