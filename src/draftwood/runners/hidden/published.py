"""What published drafters of hidden states have in common."""

from __future__ import annotations

from typing import Any

from torch import nn

from draftwood.core.errors import PairingError
from draftwood.runners.context import layer_count
from draftwood.runners.hidden.module import DrafterModule


class PublishedDrafter(DrafterModule):
    """The base of published drafters. Names of the weights are those of the checkpoints."""

    def check_target(self, target: Any) -> None:
        """Raise a PairingError if hidden states, vocabulary or shared weights of a target do not fit; names both numbers."""
        own, (vocabulary, width) = self.config, target.get_output_embeddings().weight.shape
        _equal("reads hidden states of width", own.target_size, "the target's have", width)
        _equal("has a vocabulary of size", own.vocab_size, "the target's has", vocabulary)
        deepest, layers = max(own.target_layers), layer_count(target.config)
        if deepest >= layers:
            raise PairingError(
                f"the drafter reads the output of layer {deepest} before the final norm, and of this target layers 0 to "
                f"{layers - 1} can be read so: give the drafter's own target"
            )
        if own.own_embedding and own.own_head:
            return
        _equal("has hidden states of width", own.hidden_size, "and shares weights of the target, whose width is", width)
        if not own.own_embedding and type(target.get_input_embeddings()) is not nn.Embedding:
            raise PairingError(
                "the drafter shares the target's embeddings, which this target scales "
                f"({type(target.get_input_embeddings()).__name__}): take a drafter with embed_tokens of its own"
            )
        if not own.own_head and target.get_output_embeddings().bias is not None:
            raise PairingError(
                "the drafter shares the target's output weights, which have a bias here: take a drafter with an lm_head"
            )


def _equal(what: str, own: int, other: str, found: int) -> None:
    if own != found:
        raise PairingError(f"the drafter {what} {own}, {other} {found}: give the drafter's own target")
