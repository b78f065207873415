"""Batches of prompts, and the methods that take single prompts only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from benchmarks.prompts import Prompt
from benchmarks.settings import PACKAGES, Setting
from draftwood.core.errors import ConfigError

Batch: TypeAlias = tuple[int, ...]
"""Indices of the prompts of a batch."""

ALONE: Final = {
    **dict.fromkeys(("assisted", "prompt-lookup"), "transformers drafts for one text at a time"),
    **{name: f"{package} generates one text at a time" for name, package in PACKAGES.items() if name.startswith("llama")},
}
"""Methods that take one prompt at a time, and why."""


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
                f"that {size} divides (--prompts-per-source {-(-len(numbers) // size) * size}), or another --batch"
            )
    return sorted(tuple(its[at : at + size]) for its in sources.values() for at in range(0, len(its), size))


def at_batches(settings: Iterable[Setting], sizes: Sequence[int]) -> list[Setting]:
    """Every setting once for each batch size that its method takes."""
    chosen = list(settings)
    return [replace(s, batch=size) for size in sizes for s in chosen if size == 1 or s.method not in ALONE]


def left_out(settings: Iterable[Setting], sizes: Sequence[int]) -> dict[str, str]:
    """Methods that are not measured at a batch size, as :attr:`Setting.group` names them there, and why."""
    methods = dict.fromkeys(setting.method for setting in settings if setting.method in ALONE)
    return {Setting(method=m, batch=size).group: ALONE[m] for size in sizes if size > 1 for m in methods}
