"""What an EAGLE-3 drafter knows of a row: its entries, and the target's hidden states that it has not read."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.runners.rows import common_length
from draftwood.sampling.rows import Row


@final
class EagleText:
    """One row.

    An entry of the cache is a token and the hidden states of the token before it. So the text's first token has none.

    Args:
        row: the row.

    Attributes:
        entries: the row of the cache: the tokens of all entries that could be made so far, then the one of the root.
        known: number of tokens whose hidden states are known.
        first: number of the first token with an entry.
        waiting: hidden states of the entries that are not in the cache.
        last: hidden states of the last known token, for the entry of the next one.
        fresh: the row was read before it joined, and has had no round yet. As for any row, nothing is drafted in the first.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.entries = Row(tokens=[])
        self.fresh = False
        self.begin(0)

    def begin(self, known: int) -> None:
        """Forget all hidden states; those of the tokens from ``known`` on come next."""
        self.known, self.first = known, known + 1
        self.waiting: list[Float[Tensor, "_token taps_width"]] = []
        self.last: Float[Tensor, "1 taps_width"] | None = None
        self._set_entries()

    def _set_entries(self) -> None:
        self.entries.tokens = self.row.tokens[self.first : self.known + 1]

    @property
    def ready(self) -> bool:
        """Whether the root's entry can be made."""
        return self.last is not None and self.known == len(self.row.tokens) - 1 and not self.fresh

    def for_row(self, row: Row, length: int) -> EagleText:
        """What is known of the beginning, of at most ``length`` tokens, that another row shares with this one.

        Where the texts part, the hidden states of the token before are not kept: they are read again (:meth:`read`).
        """
        found = EagleText(row)
        common = common_length(self.row.tokens[: self.known], row.tokens[:length])
        if common < self.first:
            return found
        found.known, found.first, found.waiting, found.last = common, self.first, list(self.waiting), self.last
        if common < self.known:
            cached = self.known - self.first - sum(map(len, self.waiting))
            left = max(0, common - self.first - cached)
            found.waiting = [torch.cat(self.waiting)[:left]] if left else []
            found.last = None if self.last is None else torch.zeros_like(self.last)
        found._set_entries()
        return found

    def unread(self, nothing: Float[Tensor, "1 taps_width"]) -> Float[Tensor, "_token taps_width"]:
        """Hidden states of the entries that wait, which wait no longer, and of the root's; ``nothing`` where it has none."""
        found = torch.cat([*self.waiting, nothing if self.last is None else self.last]).to(nothing.dtype)
        self.waiting = []
        return found

    def read(self, hidden: Float[Tensor, "_token taps_width"], end: int, *, root_kept: bool) -> None:
        """Take hidden states of the last of the first ``end`` tokens, without a gap.

        Args:
            root_kept: the cache has the entry of the token after the last known one.
        """
        self.fresh = False
        start = end - len(hidden)
        if (again := self.known - start) > 0:  # the last ones that are known already
            self.last = None if self.last is None else hidden[again - 1 : again]
            hidden, start = hidden[again:], self.known
        if not len(hidden):
            return
        entry_of_root = [] if self.last is None or root_kept else [self.last]
        self.waiting += [part for part in (*entry_of_root, hidden[:-1]) if len(part)]
        self.last, self.known = hidden[-1:], end
        self._set_entries()
