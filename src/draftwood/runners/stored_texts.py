"""The protocols of runners whose memory of texts can be written to files and read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from draftwood.runners.protocols import KeepsTexts
from draftwood.sampling.rows import Row

PAGE: Final = 64
"""Tokens of a page of keys and values (``native/model.h``)."""


@runtime_checkable
class TextMemory(Protocol):
    """What a runner keeps of a text: what it writes for one is what another one of the same weights reads.

    Attributes:
        marks: copies of its beginnings with other running states.
        parts: its memory: of running states, then pages of :data:`PAGE` tokens, the last one of those that are left.
    """

    @property
    def marks(self) -> Sequence[TextMemory]: ...

    @property
    def parts(self) -> list[UInt8[np.ndarray, "_byte"]]: ...

    def __len__(self) -> int:
        """Number of tokens."""


@runtime_checkable
class StoresTexts(KeepsTexts, Protocol):
    """A runner whose memory of kept texts can be written to files and read again.

    Attributes:
        shift: what is kept of a token is made of the text up to so many tokens behind it.
    """

    @property
    def shift(self) -> int: ...

    def memory_of(self, text: Row) -> TextMemory | None:
        """The memory of a kept text from its first token on; None where there is none."""

    def restore(self, text: Row, length: int) -> TextMemory:
        """Keep a memory of a text's first tokens, as :meth:`keep` does, whose parts the caller writes next.

        Raises:
            CacheError: there is no memory for it.
        """
