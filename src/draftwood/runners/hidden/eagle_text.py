"""What an EAGLE-3 drafter knows of a row: its text, and the target's hidden states that it has not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.runners.rows import common_length


@final
class EagleText:
    """One row.

    An entry of the cache is a token and the hidden states of the token before it. So the text's first token has none.

    Attributes:
        text: the committed tokens, without the root.
        known: number of tokens whose hidden states are known.
        first: number of the first token with an entry.
        waiting: hidden states of the entries that are not in the cache.
        last: hidden states of the last known token, for the entry of the next one.
        fresh: the row was read before it joined, and has had no round yet. As for any row, nothing is drafted in the first.
    """

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)
        self.fresh = False
        self.begin(0)

    def begin(self, known: int) -> None:
        """Forget all hidden states; those of the tokens from ``known`` on come next."""
        self.known, self.first = known, known + 1
        self.waiting: list[Float[Tensor, "_token taps_width"]] = []
        self.last: Float[Tensor, "1 taps_width"] | None = None

    @property
    def ready(self) -> bool:
        """Whether the root's entry can be made."""
        return self.last is not None and self.known == len(self.text) and not self.fresh

    @property
    def entries(self) -> list[int]:
        """The tokens of all entries that could be made so far."""
        return self.text[self.first : self.known]

    def go_on(self, text: Sequence[int]) -> None:
        """Replace the text, and keep what is known of the common beginning.

        Where the texts part, one entry is made without hidden states: those of the token before it are not kept.
        """
        common = common_length(self.text[: self.known], text)
        if common < self.known:
            cached = self.known - self.first - sum(map(len, self.waiting))
            left = max(0, common - self.first - cached)
            self.waiting = [torch.cat(self.waiting)[:left]] if left else []
            self.last = None if self.last is None else torch.zeros_like(self.last)
        self.text = list(text)
        if common < self.first:
            self.begin(0)
        else:
            self.known = common

    def copied(self, text: Sequence[int]) -> EagleText:
        """Another row, which begins like this one: what is known of the common beginning."""
        found = EagleText(self.text)
        found.known, found.first, found.waiting, found.last = self.known, self.first, list(self.waiting), self.last
        found.go_on(text)
        return found

    def misses(self, count: int) -> bool:
        """Whether hidden states of the last ``count`` tokens leave a gap: another drafter, or none, was in use."""
        return len(self.text) - count > self.known

    def read(self, hidden: Float[Tensor, "_token taps_width"], *, root_kept: bool) -> list[int]:
        """Take hidden states of the text's last tokens, without a gap; returns the tokens of the new entries.

        Args:
            root_kept: the cache has the entry of the token after the last known one.
        """
        self.fresh = False
        start = len(self.text) - len(hidden)
        if (again := self.known - start) > 0:  # the last ones that are known already
            self.last = None if self.last is None else hidden[again - 1 : again]
            hidden, start = hidden[again:], self.known
        if not len(hidden):
            return []
        entry_of_root = [] if self.last is None or root_kept else [self.last]
        new = [*entry_of_root, hidden[:-1]]
        tokens = self.text[start + 1 - len(entry_of_root) :]
        self.waiting += [part for part in new if len(part)]
        self.last, self.known = hidden[-1:], len(self.text)
        return tokens
