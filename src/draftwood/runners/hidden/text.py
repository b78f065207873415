"""What a drafter of hidden states knows of a row: its entries, and the target's hidden states that it has not read."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.runners.rows import common_length
from draftwood.sampling.rows import Row


@final
class HiddenText:
    """One row, whose hidden states are known from a token on, without a gap.

    An entry of the memory is made of a token's hidden states. An EAGLE-3 drafter adds the embedding of the token after it,
    so the last hidden states wait for the entry of the root.

    Args:
        row: the row.
        shift: 1 if the entry of a token is made of the hidden states of the token before it, 0 if of its own.

    Attributes:
        entries: the row of the memory: the tokens of all entries that could be made so far, then the one of the root.
        start: number of the first token whose hidden states are known.
        known: number of tokens up to the last one whose hidden states are known.
        cached: number of entries in the memory.
        waiting: hidden states that are in no entry of the memory.
        fresh: the row was read before it joined, and has had no round yet. As for any row, nothing is drafted in the first.
    """

    def __init__(self, row: Row, shift: int) -> None:
        self.row, self._shift = row, shift
        self.fresh = False
        self.begin(0)

    def begin(self, known: int) -> None:
        """Forget all hidden states; those of the tokens from ``known`` on come next, and their entries are another row."""
        self.entries = Row(tokens=[])
        self.start = self.known = known
        self.cached = 0
        self.waiting: list[Float[Tensor, "_token taps_width"]] = []
        self._set_entries()

    def restore(self, count: int) -> None:
        """The memory has the entries of the first tokens, so many, and nothing waits."""
        self.known = self.cached = count
        self._set_entries()

    def _set_entries(self) -> None:
        self.entries.tokens = self.row.tokens[self.start + self._shift : self.known + 1]

    @property
    def ready(self) -> bool:
        """Whether all hidden states before the root are known."""
        return self.start < self.known == len(self.row.tokens) - 1 and not self.fresh

    @property
    def unread_tokens(self) -> int:
        """Number of tokens whose hidden states wait."""
        return self.known - self.start - self.cached

    @property
    def unread_bytes(self) -> int:
        """Bytes of the hidden states that wait."""
        return self.unread_tokens * self.waiting[0].shape[1] * self.waiting[0].itemsize if self.waiting else 0

    def for_row(self, row: Row, length: int) -> HiddenText:
        """What is known of the beginning, of at most ``length`` tokens, that another row shares with this one.

        Where the texts part, the hidden states for the last shared entry are not kept: they come again.
        """
        found = HiddenText(row, self._shift)
        common = common_length(self.row.tokens[: self.known], row.tokens[:length])
        if common > self.start:
            unread = common - self.start - self.cached
            found.start, found.known = self.start, common if unread > 0 else common - self._shift
            found.cached = min(self.cached, found.known - self.start)
            for part in self.waiting:
                if unread > 0:
                    found.waiting.append(part if len(part) <= unread else part[:unread].clone())  # views keep all
                unread -= len(part)
            found._set_entries()
        return found

    def unread(self, nothing: Float[Tensor, "1 taps_width"], *, root: bool) -> Float[Tensor, "_token taps_width"]:
        """Hidden states of the entries that wait.

        Args:
            nothing: zeros.
            root: also those of the root's entry, if it has one; ``nothing`` where they are not known.
        """
        parts = [part if part.dtype == nothing.dtype else part.to(nothing.dtype) for part in self.waiting] or [nothing[:0]]
        states = parts[0] if len(parts) == 1 else torch.cat(parts)
        if not root:
            return states[: len(states) - self._shift]
        return states if len(states) or not self._shift else nothing

    def entries_read(self) -> None:
        """The memory has all entries but the root's."""
        self.waiting = [part[-1:] for part in self.waiting[-1:]] if self._shift else []
        self.cached = self.known - self.start - len(self.waiting)

    def read(self, hidden: Float[Tensor, "_token taps_width"], end: int, *, root_kept: bool = False) -> None:
        """Take hidden states of the last of the first ``end`` tokens, of which the first ones may be known already.

        Args:
            root_kept: the memory has the entry of the root of the round before.
        """
        self.fresh = False
        start = end - len(hidden)
        if start > self.known:
            self.begin(start)
        if end <= self.known:
            return
        new = hidden[self.known - start :] if self.known > start else hidden
        if root_kept:
            self.waiting, self.cached = [], self.known - self.start
        self.waiting.append(new)
        self.known = end
        self._set_entries()
