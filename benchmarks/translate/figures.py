"""From translations and seconds to the figures of the report; everything here is plain arithmetic on lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from benchmarks.translate.run import Batch, Sample
from benchmarks.translate.systems import STAGES
from draftwood.tune.compare import spread

Columns: TypeAlias = dict[str, list[Any]]
"""One repeat: a list per quantity, one entry per batch."""


def columns(samples: Sequence[Sample]) -> Columns:
    """The raw numbers of one repeat as they stand in the JSON file."""
    return {
        "new_tokens": [sum(map(len, s.output.tokens)) for s in samples],
        "passes": [s.output.passes for s in samples],
        "seconds": [round(s.seconds, 6) for s in samples],
        **{f"{stage}_seconds": [round(s.output.seconds[stage], 6) for s in samples] for stage in STAGES},
    }


def translations(samples: Sequence[Sample], batches: Sequence[Batch]) -> list[list[int]]:
    """Token ids of one repeat, in the order of the sentences."""
    found = {
        sentence: row
        for sample, batch in zip(samples, batches, strict=True)
        for sentence, row in zip(batch, sample.output.tokens, strict=True)
    }
    return [found[sentence] for sentence in range(len(found))]


def speeds(repeats: Sequence[Columns], base: Sequence[Columns] | None, sentences: int) -> dict[str, Any]:
    """Speed, and its parts.

    Args:
        repeats: of the system.
        base: of ``generate``, for the ratio inside each repeat.
        sentences: their number.

    Returns:
        Medians with extremes over repeats of ``sentences_per_second``, ``tokens_per_second`` and ``ratio``;
        ``block_efficiency``, tokens per pass of the target's decoder, where passes are counted; and ``share``, of the time
        by stage, where the system tells it.
    """
    seconds = [sum(r["seconds"]) for r in repeats]
    tokens = [sum(r["new_tokens"]) for r in repeats]
    passes = sum(sum(r["passes"]) for r in repeats)
    stages = {stage: sum(sum(r[f"{stage}_seconds"]) for r in repeats) for stage in STAGES}
    known, whole = sum(stages.values()), sum(seconds)
    share = {**{s: t / whole for s, t in stages.items()}, "other": max(0.0, 1 - known / whole)}
    return {
        "sentences_per_second": spread([sentences / s for s in seconds]),
        "tokens_per_second": spread([t / s for t, s in zip(tokens, seconds, strict=True)]),
        "ratio": None if base is None else spread([sum(b["seconds"]) / s for b, s in zip(base, seconds, strict=True)]),
        "block_efficiency": sum(tokens) / passes if passes else None,
        "share": share if known else None,
    }


def quality(texts: Sequence[str], references: Sequence[str], greedy: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU against the references and against the target's greedy translations (sacreBLEU, Post 2018, arXiv
    1804.08771, with its defaults)."""
    import sacrebleu

    return {
        "bleu": sacrebleu.corpus_bleu(list(texts), [list(references)]).score,
        "bleu_to_greedy": sacrebleu.corpus_bleu(list(texts), [list(greedy)]).score,
    }
