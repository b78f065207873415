"""Prompt lookup: the continuation of the last earlier match of the text's last n-gram (a point-mass chain)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from draftwood.draft.ngram_index import MAX_NGRAM, NgramIndex
from draftwood.draft.proposed import ProposedChains

_EVERY: Final = 1 << 63  # tokens: the drafter cuts off those that the target lacks


@final
class PromptLookup:
    """What followed the latest earlier match of a text's ending, in the text or in what an encoder reads.

    Args:
        source: what the encoder reads.
        max_ngram: the longest ending that is looked up.
    """

    def __init__(self, source: Sequence[int], max_ngram: int = MAX_NGRAM) -> None:
        self._index = NgramIndex(source, max_ngram)

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        return self._index.follow(text, count, _EVERY)[0]


def ngram(length: int) -> ProposedChains:
    """Drafts chains of up to ``length`` tokens by prompt lookup; no draft model."""
    return ProposedChains("ngram", PromptLookup, length)
