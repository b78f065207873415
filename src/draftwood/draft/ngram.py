"""Prompt lookup: the continuation of the last earlier match of the text's last n-gram (a point-mass chain)."""

from __future__ import annotations

from draftwood.draft.ngram_index import NgramIndex
from draftwood.draft.proposed import ProposedChains


def ngram(length: int) -> ProposedChains:
    """Drafts chains of up to ``length`` tokens by prompt lookup; no draft model."""
    return ProposedChains("ngram", NgramIndex, length)
