"""Systems, which turn token ids of sentences into token ids of their translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

STAGES = ("draft", "target", "verify")


@final
@dataclass(frozen=True, kw_only=True)
class Output:
    """Translations of one batch and, where the system reports it, their cost.

    Attributes:
        tokens: per sentence, token ids up to and with the end of sentence, without what the decoder began with.
        passes: the target's decoder passes, counted per sentence; 0 where they are not counted.
        seconds: of Draftwood's stages; nothing for others.
        elapsed: seconds of the whole call, where a process of its own made it and measured it there.
    """

    tokens: list[list[int]]
    passes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    elapsed: float | None = None


Translate: TypeAlias = Callable[[Sequence[Sequence[int]]], Output]
"""Translates a batch of sources, given as token ids with their end of sentence."""


@final
@dataclass(frozen=True, kw_only=True)
class System:
    """One way to translate.

    Attributes:
        name: unique within a run.
        translate: does it.
        ours: it is Draftwood.
        greedy: it means to write the target's greedy translation, token for token.
    """

    name: str
    translate: Translate
    ours: bool
    greedy: bool


def closed(row: Sequence[int], eos: Sequence[int]) -> list[int]:
    """A translation up to its first end of sentence, inclusive; the rest is padding."""
    ends = (at for at, token in enumerate(row) if token in eos)
    return list(row[: next(ends, len(row)) + 1])
