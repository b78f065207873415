"""Batches of prompts, and the methods that take single prompts only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from benchmarks.prompts import Prompt
from draftwood.core.errors import ConfigError

Batch: TypeAlias = tuple[int, ...]
"""Indices of the prompts of a batch."""

ALONE: Final = ("assisted", "prompt-lookup")
"""Methods of transformers that draft for one text at a time."""


def batched(prompts: Sequence[Prompt], size: int) -> list[Batch]:
    """All prompts in batches of one source each; every source has its first batch before any has its second.

    Raises:
        ConfigError: the prompts of a source do not fill their batches.
    """
    sources: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        sources.setdefault(prompt.source, []).append(number)
    for source, numbers in sources.items():
        if len(numbers) % size:
            raise ConfigError(
                f"batches of {size} cannot be filled with {len(numbers)} prompts of {source!r}: give each source a number "
                f"that {size} divides ({-(-len(numbers) // size) * size}), or take another size"
            )
    return sorted(tuple(its[at : at + size]) for its in sources.values() for at in range(0, len(its), size))
