"""Every method that keeps only the target's best tokens, against the target's greedy translation, token by token."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.document import FORMAT, setting
from benchmarks.translate.run import batched
from benchmarks.translate.sentences import Sentence, differences
from benchmarks.translate.systems import System
from draftwood.translation import Translator

BATCH_SIZES: Final = (1, 16)
"""One sentence at a time, and rows of different lengths side by side."""


def compare(
    config: TranslateConfig,
    translator: Translator,
    systems: Sequence[System],
    sentences: Sequence[Sentence],
    load_before: float | None,
    on_step: Callable[[], object],
) -> dict[str, Any]:
    """A document of plain values; ``on_step`` is called after every batch."""
    numbers = list(range(len(sentences)))
    random.Random(config.seed).shuffle(numbers)  # files are often sorted by length
    results = []
    for system in systems:
        for size in BATCH_SIZES:
            rows: dict[int, list[int]] = {}
            for batch in batched([numbers], size):
                rows |= zip(batch, system.translate([sentences[n].tokens for n in batch]).tokens, strict=True)
                on_step()
            apart = differences(translator, sentences, [[rows[n] for n in range(len(sentences))]])
            results.append({"system": system.name, "ours": system.ours, "batch_size": size, "differing": apart})
    return {
        "format": FORMAT,
        "partial": False,
        **setting(config, translator, load_before),
        "groups": {"all": len(sentences)},
        "results": results,
    }


def steps(systems: Sequence[System], sentences: int) -> int:
    """Batches that are translated."""
    return len(systems) * sum(-(-sentences // size) for size in BATCH_SIZES)
