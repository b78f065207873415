"""The prefix cache on disk: texts as files of pages, which later processes find again.

The name of a file has two digests: of the text before its page, and of the text to its end. Both begin with the model, with
all that changes its bits, and with the salt. So the pages of a text are found by their names, one after the other, and texts
that begin alike share them. What is left behind the last full page, and running states, are in a file too.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
from jaxtyping import Int32

from draftwood.core.errors import CacheError
from draftwood.engine.prefix_files import FORMAT, Bytes, DamagedError, PrefixFiles
from draftwood.native.build import digest as engine_version
from draftwood.runners.native.memory import PAGE, RowMemory, StoresTexts
from draftwood.runners.protocols import Runner
from draftwood.runners.rows import common_length
from draftwood.sampling.rows import Row

_LOOKED_AT: Final = 64  # ends of texts behind one page, the last used ones: any other would save less than a page
_LOG = logging.getLogger(__name__)
Tokens: TypeAlias = Int32[np.ndarray, "_token"]


class _Found(NamedTuple):
    """The longest beginning of a text that is on disk for a model: its files in order, and its tokens."""

    runner: StoresTexts
    names: list[str]
    length: int

    @property
    def memory_bytes(self) -> int:
        return self.runner.token_bytes * -(-self.length // PAGE) * PAGE + self.runner.row_bytes


@final
class PrefixFolder:
    """Texts on disk. An error of the disk costs what it would have kept, and has a line in the log.

    Args:
        path, size: as for :class:`draftwood.engine.prefix_files.PrefixFiles`.
        target: the model whose texts these are.
        keys: for ``target`` and ``draft``, plain values on which the bits of their memory depend.

    Attributes:
        tokens: that were read from files so far.

    Raises:
        ConfigError: the folder cannot be made or read.
    """

    def __init__(self, path: Path, size: int, target: StoresTexts, keys: Mapping[str, Any]) -> None:
        self._files, self._target = PrefixFiles(path, size), target
        self._keys = {side: json.dumps([FORMAT, engine_version(), side, key]) for side, key in keys.items()}
        self.tokens = 0

    def save(self, text: Row, salt: str, draft: Runner | None) -> None:
        """Write what the models keep of a text, as far as it is not there."""
        try:
            self._files.look()
            for runner in (self._target, draft):
                if isinstance(runner, StoresTexts) and (memory := runner.memory_of(text)) is not None:
                    for one in (*memory.marks, memory):
                        self._save(*self._chained(runner, salt, text.tokens[: len(one) + runner.shift]), one)
        except (OSError, CacheError, MemoryError) as error:
            _LOG.warning("a text is not kept in the cache folder: %s", error)

    def restore(
        self,
        tokens: Sequence[int],
        salt: str,
        draft: Runner | None,
        least: int,
        room: Callable[[int], bool],
        *,
        drafts: bool = True,
    ) -> Row | None:
        """A text that the models keep from now on, with the longest beginning of these tokens that is on disk.

        Args:
            tokens, salt: of a new text.
            draft: the draft model; where it reads the target's hidden states, it needs as much of the text.
            drafts: the draft model is used; else the target's part of a text suffices.
            least: tokens that are worth it.
            room: makes room for so many bytes, and says whether there is.

        Returns:
            None where less is on disk.
        """
        needed = [self._target, *([draft] if drafts and draft is not None and draft.kind.reads_hidden else [])]
        while True:
            runners = [one for one in (self._target, draft) if isinstance(one, StoresTexts)]
            found = [one for one in (self._longest(runner, salt, tokens) for runner in runners) if one.length]
            lengths = {id(one.runner): one.length for one in found}
            if min(lengths.get(id(one), 0) for one in needed) < least or not room(sum(one.memory_bytes for one in found)):
                return None
            text = Row(tokens=list(tokens[: max(one.length + one.runner.shift for one in found)]))
            try:
                for one in found:
                    self._fill(one, text)
            except DamagedError:
                continue  # without this file
            except (CacheError, MemoryError):
                return None
            self.tokens += found[0].length
            return text

    def _chained(self, runner: StoresTexts, salt: str, tokens: Sequence[int]) -> tuple[list[bytes], Tokens]:
        """The digests of a text behind each of its full pages, from that of none on; and the tokens of the pages."""
        ids = np.asarray(tokens, np.dtype("<i4"))
        own, secret = self._keys["target" if runner is self._target else "draft"], hashlib.sha256(salt.encode()).hexdigest()
        first, ids = ids[: runner.shift], ids[runner.shift :]
        chain = [_digest(json.dumps([own, runner.row_bytes, secret]).encode(), first)]
        for page in range(len(ids) // PAGE):
            chain.append(_digest(chain[-1], ids[page * PAGE : (page + 1) * PAGE]))
        return chain, ids

    def _save(self, chain: Sequence[bytes], ids: Tokens, memory: RowMemory) -> None:
        parts, count, rest = memory.parts, -(-len(memory) // PAGE), ids[len(ids) // PAGE * PAGE :]
        states, pages = _named(parts[: len(parts) - count]), parts[len(parts) - count :]
        files: dict[str, tuple[Tokens, Mapping[str, Bytes]]] = {}
        for i, ends in enumerate(pairwise(chain)):
            files[_name(*ends, PAGE)] = ids[i * PAGE : (i + 1) * PAGE], {"page": pages[i]}
        if len(rest) or states:
            name = _name(chain[-1], _digest(chain[-1], rest), len(rest))
            files[name] = rest, {**states, **({"page": pages[-1]} if len(rest) else {})}
        if sum(part.nbytes for _, own in files.values() for part in own.values()) > self._files.size:
            _LOG.warning("a text of %d tokens is larger than the whole cache folder: give more cache_size", len(memory))
            return
        self._files.use([name for name in files if name in self._files])
        for name, (tokens, own) in files.items():
            if name not in self._files:
                self._files.write(name, tokens.tolist(), own)
        self._files.use(list(files))

    def _longest(self, runner: StoresTexts, salt: str, tokens: Sequence[int]) -> _Found:
        chain, ids = self._chained(runner, salt, tokens)
        names = list[str]()
        for ends in pairwise(chain):
            if (name := _name(*ends, PAGE)) not in self._files:
                break
            names.append(name)
        for pages in range(len(names), -1, -1):
            rest = ids[pages * PAGE : (pages + 1) * PAGE]
            name, length = self._with_states(chain[pages], rest) if runner.row_bytes else self._partly(chain[pages], rest)
            if name or not runner.row_bytes:
                return _Found(runner, names[:pages] + [name] * bool(name), pages * PAGE + length)
        return _Found(runner, [], 0)

    def _partly(self, parent: bytes, ids: Tokens) -> tuple[str, int]:
        """Of the files behind a page, the one that has the most of these tokens, and how many it has."""
        best, wanted = ("", 0), ids.tolist()
        for name in self._files.after(parent.hex())[-_LOOKED_AT:]:
            with suppress(DamagedError):
                best = max(best, (name, common_length(self._files.tokens(name), wanted)), key=lambda found: found[1])
        return best

    def _with_states(self, parent: bytes, ids: Tokens) -> tuple[str, int]:
        """Of the files behind a page that have running states, the longest one that begins as the text does."""
        counts = {int(name.split("-")[2].split(".")[0]) for name in self._files.after(parent.hex())} - {PAGE}
        for count in sorted((one for one in counts if one <= len(ids)), reverse=True):
            if (name := _name(parent, _digest(parent, ids[:count]), count)) in self._files:
                return name, count
        return "", 0

    def _fill(self, found: _Found, text: Row) -> None:
        """Read the memory of a text from its files; raises DamagedError, and what the runner raises."""
        parts, count = found.runner.restore(text, found.length).parts, -(-found.length // PAGE)
        states, pages = _named(parts[: len(parts) - count]), parts[len(parts) - count :]
        for i, name in enumerate(found.names):
            ends = states if states and i == len(found.names) - 1 else {}
            self._files.read(name, {**ends, **({"page": pages[i]} if i < count else {})})
        self._files.use(found.names)


def _named(states: Sequence[Bytes]) -> dict[str, Bytes]:
    return {f"state{i}": part for i, part in enumerate(states)}


def _name(parent: bytes, own: bytes, count: int) -> str:
    """The name of a file with so many tokens."""
    return f"{parent.hex()}-{own.hex()}-{count}.safetensors"


def _digest(parent: bytes, tokens: Tokens) -> bytes:
    return hashlib.sha256(parent + tokens.tobytes()).digest()[:16]
