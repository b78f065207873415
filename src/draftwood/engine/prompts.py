"""The prompts of new rows: short ones are read with a round, long ones in chunks alongside the rows that write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, final

import torch

from draftwood.core.errors import CacheError
from draftwood.core.history import History
from draftwood.engine.drafting import Drafting
from draftwood.engine.pipeline import Entry, Pipeline
from draftwood.engine.prefixes import PrefixCache, alike, longest, serves
from draftwood.runners.protocols import KeepsTexts, Prefix
from draftwood.sampling.rows import Row

CHUNK: Final = 256
"""Prompt tokens of a step alongside rows that write; so many are read about as fast, token by token, as in larger chunks."""
ALONE: Final = 1024
"""Prompt tokens of a step without rows that write, where others may come: a few seconds of a small model on two cores."""
DISTANCE: Final = 512
"""Tokens of a prompt between two copies of running states. With Qwen3.5-0.8B on two cores a copy takes 46 MB and 5 ms, less
than 1 % of the time in which so many are read."""
AGAIN: Final = 32
"""Tokens of a model with running states that are read again, at most, where a text leaves another one at the end of its
prompt, as the next turn of a chat does, or about where another one left it: what differs may begin with the same words."""
PADDING: Final = 16
"""Tokens: the most padding that a prompt may bring to a round on a CPU. More takes longer than a forward of its own."""


class _Part(NamedTuple):
    """A prompt that is read in part: its row, how many tokens were read, and the stops behind them."""

    entry: Entry
    done: int
    stops: list[int]


@final
class Prompts:
    """Gives both models the prompts of new rows, first come, first served.

    A prompt is read in the next round if that costs little padding, and otherwise in forwards of its own. A target that pads
    no rows reads it with the round at any length. With rows that write, a step reads at most a chunk, padding included. A
    prompt that is longer is read in parts and joins when it is read. What a prompt has in common with another row, or with a
    text that has ended, is copied, and only the rest is read.

    Args:
        pipeline: has the target.
        drafting: the draft model.
        prefixes: as for :class:`draftwood.engine.batch.Batch`.
    """

    def __init__(self, pipeline: Pipeline, drafting: Drafting, prefixes: PrefixCache | None) -> None:
        self._target = target = pipeline.target
        self._keeper = target if isinstance(target, KeepsTexts) else None
        self._keepers = [runner for runner in (target, drafting.runner) if isinstance(runner, KeepsTexts)]
        self._drafting = drafting
        # Prompt tokens of a step: without rows that write (unlimited if no request can arrive), and with them.
        self._most = ALONE if drafting.tolerant else math.inf, CHUNK
        self._prefixes = prefixes
        self._part: _Part | None = None
        self._stops: list[int] = []  # behind so many tokens of a prompt its running states are kept
        self._left = math.inf  # tokens of this step
        self._drafts = True  # for some row of this step
        self._given = 0  # rows that both models have
        self._padding = PADDING if target.pads and target.device.type == "cpu" else math.inf  # of a round

    def join(self, coming: Sequence[Entry], rows: Sequence[Entry]) -> list[Entry]:
        """Those of the coming rows, from the first on, that join ``rows`` now."""
        if not rows:
            if not any(map(self._part_of, coming)):
                self._part = None
            self.clear()
        self._left, self._given = self._most[bool(rows)], len(rows)
        self._drafts = any(entry.drafts for entry in (*rows, *coming))
        now, width = list(rows), 0
        for i, row in enumerate(coming):
            prefix = self._prefix(row, now)
            unread = len(row.context) - (0 if prefix is None else prefix.length - 1)
            wider, padded = self._widened(width, unread, len(now))
            if self._joins_unread(row, unread, coming[i + 1 :], padded):
                if prefix is not None or self._stops:
                    self._set_rows(now)
                    self._prefill(row, max(self._stops, default=0), prefix)
                    self._set_rows([*now, row])
                self._left -= padded
                width = wider
            else:
                self._set_rows(now)
                if not self._read(row, prefix):
                    break
                self._set_rows([*now, row])
                self._left -= width
            now.append(row)
            self.trim(now)  # marks may take more than there is
        self._set_rows(now)
        return now[len(rows) :]

    @property
    def reading(self) -> tuple[int, int] | None:
        """The number of the row whose prompt is read in part, and the tokens of it that were read; None without one."""
        return None if self._part is None else (self._part.entry.row.number, self._part.done)

    def _part_of(self, entry: Entry) -> _Part | None:
        """What was read of a row's prompt, if it is the one that is read in part."""
        return self._part if self._part is not None and self._part.entry is entry else None

    def forget(self, entry: Entry) -> None:
        """A row that may have been read in part comes no more."""
        if self._part_of(entry) is not None:
            self._part = None

    def clear(self) -> None:
        """Remove all rows of both models; a prompt that was read in part stays."""
        if self._part is None:
            self._target.clear()
            self._drafting.clear()
        else:
            self._target.set_rows([])
            self._drafting.set_rows([])

    @property
    def history(self) -> History | None:
        """Earlier texts, from which drafts are taken; None for no such drafts."""
        return None if self._prefixes is None else self._prefixes.history

    def keep(self, entry: Entry) -> None:
        """Keep the text of a row that leaves between two rounds, and its memory, for later ones."""
        if (history := entry.row.history) is not None:
            history.add([*entry.row.source, *entry.row.tokens], entry.row.owner)
        if self._prefixes is not None and self._keeper is not None:
            self._prefixes.keep(entry.row, entry.request.cache_salt, self._keeper, self._drafting.runner)

    def trim(self, entries: Sequence[Entry]) -> None:
        """Forget what was kept for later rows, as far as the present ones need the memory."""
        if self._prefixes is not None and self._keeper is not None:
            coming = [] if self._part is None else [self._part.entry]
            self._prefixes.trim(self._keepers, [entry.row for entry in (*entries, *coming)])

    def _widened(self, width: int, length: int, rows: int) -> tuple[int, int]:
        """The width of a round of so many rows after a prompt of this length, and the tokens it adds, padding included."""
        if not self._target.pads:
            return 0, length
        wider = max(width, length)
        return wider, wider * (rows + 1) - width * rows

    def _prefix(self, row: Entry, now: Sequence[Entry]) -> Prefix | None:
        """The longest beginning of a prompt that was read in present rows or in texts that have ended; sets its stops."""
        self._stops = []
        if (part := self._part_of(row)) is not None:
            self._stops = part.stops
            return None
        if self._keeper is None:
            return None
        draft, salt = self._drafting.runner, row.request.cache_salt
        present = [other.row for other in now if _may_share(row, other) and alike(row.context, other.context)]

        def found() -> tuple[Prefix | None, int]:
            assert self._keeper is not None
            kept = [] if self._prefixes is None else self._prefixes.alike(row.context, salt, draft)
            return longest(row.context, [*present, *kept], self._keeper, draft if self._drafts else None)

        prefix, common = found()
        known = 0 if prefix is None else prefix.length
        if self._prefixes is not None and self._prefixes.restore(
            row.context, salt, self._keeper, draft, known, drafts=self._drafts
        ):
            prefix, common = found()
        if self._prefixes is not None and self._keeper.row_bytes:
            done, length = 0 if prefix is None else prefix.length - 1, len(row.context)
            stops = (*range(DISTANCE, length, DISTANCE), common - AGAIN, length - AGAIN)
            self._stops = sorted({max(done, stop) for stop in stops} - {0})
        return prefix

    def _joins_unread(self, row: Entry, unread: int, later: Sequence[Entry], padded: int) -> bool:
        """Whether the next round reads what is unread of a prompt: no later row shares it, and it adds few tokens to that
        round, padding included."""
        if self._target.kind.reads_source:
            return True
        copied = len(row.context) - unread
        shared = (_may_share(row, other) and serves(row.context, copied, other.context) for other in later)
        if self._part_of(row) is not None or any(shared):
            return False
        return padded - unread <= self._padding and padded <= self._left

    def _read(self, row: Entry, prefix: Prefix | None) -> bool:
        """Read on in a prompt, as far as this step may; returns whether it is read."""
        if self._left <= 0:
            return False
        length = len(row.context)
        self._part = self._part_of(row) or _Part(row, 0 if prefix is None else prefix.length, self._stops)
        done = self._part.done
        end = int(min(length, done + self._left))
        if end < length:  # at a stop, if there is one: it would cut the next step in two
            end = max((stop for stop in self._stops if done < stop <= end), default=end)
        self._prefill(row, end, prefix)
        self._left -= end - done
        self._part = None if end == length else _Part(row, end, self._stops)
        return end == length

    def _prefill(self, entry: Entry, end: int, prefix: Prefix | None) -> None:
        row, copied = entry.row, None
        if prefix is not None:
            # A drafter may need the target's hidden states of the last token that both texts share, so it is read again.
            copied = prefix._replace(length=prefix.length - 1)
            if not entry.stats.new_tokens:  # else a text that was paused is read anew
                entry.stats.cached_tokens = copied.length
            if self._prefixes is not None:
                self._prefixes.use(prefix.row)
        for stop in [*(stop for stop in self._stops if stop < end), end]:
            self._read_to(row, stop, copied, prefix)
        self._stops = [stop for stop in self._stops if stop > end]

    def _read_to(self, row: Row, end: int, copied: Prefix | None, prefix: Prefix | None) -> None:
        """Both models read a row's first tokens, and keep their running states there if it is a stop."""
        draft = self._drafting.runner
        with torch.inference_mode():
            hidden = self._target.prefill(row, end, prefix=copied)
            if self._drafts and draft is not None:
                with self._drafting.errors_cost_drafts():
                    draft.prefill(row, end, prefix=prefix, hidden=hidden)
        for runner in (self._target, draft) if end in self._stops else ():
            if isinstance(runner, KeepsTexts):
                with suppress(CacheError, MemoryError, RuntimeError):  # there is no memory for it
                    runner.mark(row, regular=end % DISTANCE == 0)

    def _set_rows(self, entries: Sequence[Entry]) -> None:
        """Give both models their rows, if new ones are among them."""
        if len(entries) != self._given:
            self._given, rows = len(entries), [entry.row for entry in entries]
            self._target.set_rows(rows)
            self._drafting.set_rows(rows)


def _may_share(row: Entry, other: Entry) -> bool:
    return row.request.cache_salt == other.request.cache_salt
