"""What a draft model is: decided where it is loaded, by its files or its configuration, and carried by its runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final


@final
@dataclass(frozen=True, kw_only=True)
class DraftKind:
    """What a model is as a draft; a target is of the kinds ``CAUSAL`` and ``SEQ2SEQ``.

    Attributes:
        name: its model type, if it is a network of this package.
        reads_source: it has an encoder, and every row has a source.
        reads_hidden: its memory is made of the target's hidden states, so no prefix may be longer than what it holds.
        scores_block: its runner is a :class:`draftwood.runners.protocols.BlockRunner`.
        scores_depths: its runner is a :class:`draftwood.runners.hidden.runner.HiddenBlockRunner`, one pass of which scores
            all depths of a tree.
        shared: the share of its vocabulary that the target has too; None where both have one tokenizer.
    """

    name: str
    reads_source: bool = False
    reads_hidden: bool = False
    scores_block: bool = False
    scores_depths: bool = False
    shared: float | None = None


CAUSAL: Final = DraftKind(name="causal")
SEQ2SEQ: Final = DraftKind(name="seq2seq", reads_source=True)
MASKED_BLOCK: Final = DraftKind(name="masked_block", reads_source=True, scores_block=True)
HIDDEN_BLOCK: Final = DraftKind(name="hidden_block", reads_hidden=True, scores_depths=True)
DFLASH: Final = DraftKind(name="dflash", reads_hidden=True, scores_depths=True)
EAGLE3: Final = DraftKind(name="eagle3", reads_hidden=True)
MTP: Final = DraftKind(name="mtp", reads_hidden=True)
OWN_KINDS: Final = {kind.name: kind for kind in (MASKED_BLOCK, HIDDEN_BLOCK, DFLASH, EAGLE3, MTP)}


def draft_kind(model: Any) -> DraftKind:
    """The kind of a loaded model."""
    return OWN_KINDS.get(model.config.model_type) or (SEQ2SEQ if model.config.is_encoder_decoder else CAUSAL)
