"""Prompt lookup: the continuation of the last earlier match of the text's last n-gram (a point-mass chain)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from draftwood.draft.ngram_index import MAX_NGRAM, NgramIndex
from draftwood.draft.proposed import ProposedChains

_ANY_TOKEN: Final = 1 << 63  # vocabulary size: the drafter cuts off tokens that the target lacks


@final
class PromptLookup:
    """Proposes what followed the latest earlier match of a text's last n-gram, in the text or its source.

    Args:
        source: the encoder's input.
        max_ngram: the longest n-gram that is looked up.
    """

    def __init__(self, source: Sequence[int], max_ngram: int = MAX_NGRAM) -> None:
        self._index = NgramIndex(source, max_ngram)

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        return self._index.follow(text, count, _ANY_TOKEN)[0]


def ngram(length: int) -> ProposedChains:
    """Drafts chains of up to ``length`` tokens by prompt lookup; no draft model."""
    return ProposedChains("ngram", PromptLookup, length)
