"""The prefix cache: texts that have ended, whose keys and values serve later ones that begin alike, and all as drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast, final

from draftwood.core.errors import CacheError
from draftwood.core.history import History
from draftwood.engine.prefix_folder import PrefixFolder
from draftwood.runners.protocols import KeepsTexts, Prefix, Runner
from draftwood.runners.rows import common_length
from draftwood.sampling.rows import Row

SHARED: Final = 32
"""Tokens: the shortest common beginning that is copied. Fewer are read as fast as a row is copied."""
MEMORY: Final = 1 << 30
MOST: Final = 512
"""Texts, at most: each is compared with a new one that begins with the same tokens."""


class _Key(NamedTuple):
    """What texts have in common that may serve each other."""

    salt: str
    draft: Runner | None
    beginning: tuple[int, ...]


@final
class PrefixCache:
    """Texts that have ended, the least recently used one first.

    Attributes:
        memory: bytes of the keys and values of all texts, kept or being written; while they take more, the least recently
            used ones go.
        least: number of texts that stay at any size, the last ones.
        kept: bytes of the kept texts alone, where the last one stays at any size; None for no limit but ``memory``.
        history: the tokens of texts that have ended, from which later ones take drafts; None for no such drafts.
        folder: where texts go that leave the memory, and are looked for; None for nowhere.
    """

    def __init__(self) -> None:
        self.memory, self.least = MEMORY, 1
        self.kept: int | None = None
        self.history: History | None = History()
        self.folder: PrefixFolder | None = None
        self._texts: dict[Row, _Key] = {}
        self._alike: dict[_Key, list[Row]] = {}
        self._unsaved: dict[Row, None] = {}  # texts that are not in the folder

    def __len__(self) -> int:
        """Number of texts."""
        return len(self._texts)

    def clear(self) -> None:
        """Forget all texts and free their memory; between two calls of the models."""
        self._texts, self._alike, self._unsaved = {}, {}, {}
        if self.history is not None:
            self.history.clear()

    def save(self) -> bool:
        """Write the oldest text that is not in the folder; False if there is none."""
        if self.folder is None or not self._unsaved:
            return False
        text = next(iter(self._unsaved))
        del self._unsaved[text]
        self.folder.save(text, self._texts[text].salt, self._texts[text].draft)
        return True

    def restore(
        self, tokens: Sequence[int], salt: str, target: KeepsTexts, draft: Runner | None, known: int, *, drafts: bool = True
    ) -> bool:
        """Take a text from the folder that has more of a new one's beginning than the tokens that are known, so much that
        reading it pays; whether there was one."""

        def room(needed: int) -> bool:
            runners = [runner for runner in (target, draft) if isinstance(runner, KeepsTexts)]
            if needed > self.memory:  # also if all others go
                return False
            while (full := sum(runner.memory_bytes for runner in runners) + needed > self.memory) and self._texts:
                self._leave(next(iter(self._texts)))
            return not full

        if self.folder is None or not self.memory or len(tokens) < known + SHARED:
            return False
        if (text := self.folder.restore(tokens, salt, draft, known + SHARED, room, drafts=drafts)) is None:
            return False
        self._take(text, _key(tokens, salt, draft))
        return True

    def keep(self, row: Row, salt: str, target: KeepsTexts, draft: Runner | None) -> None:
        """Keep the memory of a present row, between two rounds. A text that it continues goes; :meth:`trim` comes next.

        Args:
            row: the row.
            salt: of its request.
            target, draft: the models; a text serves those that read it.
        """
        tokens = row.tokens[: target.held(row)]
        if len(tokens) < SHARED or not self.memory:
            return
        key = _key(tokens, salt, draft)
        for text in list(self._alike.get(key, ())):
            shared = common_length(tokens, text.tokens)
            if shared == len(text.tokens) and _gives(row, shared, target, draft):
                self._forget(text)
            elif shared == len(tokens) and _gives(text, shared, target, draft):
                self.use(text)
                return
        text = Row(tokens=tokens)
        try:
            for runner in (target, draft):
                if isinstance(runner, KeepsTexts):
                    runner.keep(row, text)
        except (CacheError, MemoryError, RuntimeError):  # there is no memory for it
            return
        self._take(text, key)
        self._unsaved[text] = None

    def _take(self, text: Row, key: _Key) -> None:
        self._texts[text] = key
        self._alike.setdefault(key, []).append(text)

    def trim(self, runners: Sequence[KeepsTexts], rows: Sequence[Row] = ()) -> None:
        """Forget texts until the others fit in memory with ``rows``, which are being written."""
        full = True
        while full or len(self._texts) > MOST:
            most = self.memory
            if self.kept is not None and len(self._texts) > 1:
                most = min(most, self.kept + sum(_written(runner, rows) for runner in runners))
            full = sum(runner.memory_bytes for runner in runners) > most
            if len(self._texts) > self.least and (full or len(self._texts) > MOST):
                self._leave(next(iter(self._texts)))
            elif not full or not any([runner.thin_marks() for runner in runners]):
                return

    def alike(self, tokens: Sequence[int], salt: str, draft: Runner | None) -> Sequence[Row]:
        """Texts that begin with the same :data:`SHARED` tokens."""
        return self._alike.get(_key(tokens, salt, draft), ())

    def use(self, text: Row) -> None:
        """A text serves another one: it is the last to go. Rows that are no texts of the cache are ignored."""
        if text in self._texts:
            self._texts[text] = self._texts.pop(text)

    def _leave(self, text: Row) -> None:
        """A text leaves the memory."""
        if self.folder is not None and text in self._unsaved:
            self.folder.save(text, self._texts[text].salt, self._texts[text].draft)
        self._forget(text)

    def _forget(self, text: Row) -> None:
        self._unsaved.pop(text, None)
        alike = self._alike[key := self._texts.pop(text)]
        alike.remove(text)
        if not alike:
            del self._alike[key]


def _written(runner: KeepsTexts, rows: Sequence[Row]) -> int:
    """Bytes of the keys, values and running states of rows, without the copies that they keep for others."""
    lengths = [len(row.tokens) for row in rows]
    tokens = len(lengths) * max(lengths, default=0) if runner.pads else sum(lengths)
    return runner.token_bytes * tokens + runner.row_bytes * len(rows)


def alike(tokens: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two texts share a beginning that is worth a copy."""
    return len(tokens) >= SHARED and tokens[:SHARED] == other[:SHARED]


def serves(tokens: Sequence[int], copied: int, other: Sequence[int]) -> bool:
    """Whether another text shares so much more of this one than the part that is copied that reading it first pays."""
    return alike(tokens, other) and common_length(tokens, other) >= copied + SHARED


def longest(
    tokens: Sequence[int], rows: Sequence[Row], target: KeepsTexts, draft: Runner | None
) -> tuple[Prefix | None, int]:
    """The longest beginning that a text can take from these, None if none is worth a copy; and how many tokens it has in
    common with one of them. The last one of a beginning is read again."""
    found, common = [], 0
    for row in rows:
        length = _reach(row, draft, min(common_length(tokens, row.tokens), target.held(row)))
        common = max(common, length)
        if length >= SHARED and (length := 1 + target.reach(row, length - 1)) >= SHARED:
            found.append(Prefix(row, length))
    return max(found, key=lambda prefix: prefix.length, default=None), common


def _reach(row: Row, draft: Runner | None, length: int) -> int:
    """How much of a row's beginning a draft model can use: where it reads the target's hidden states, what it knows."""
    return min(length, cast(KeepsTexts, draft).held(row)) if draft is not None and draft.kind.reads_hidden else length


def _gives(row: Row, length: int, target: KeepsTexts, draft: Runner | None) -> bool:
    """Whether a text that shares so much of a row reads nothing of it again but the last token."""
    return _reach(row, draft, length) == length and target.reach(row, length - 1) == length - 1


def _key(tokens: Sequence[int], salt: str, draft: Runner | None) -> _Key:
    return _Key(salt, draft, tuple(tokens[:SHARED]))
